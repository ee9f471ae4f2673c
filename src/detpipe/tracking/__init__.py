"""The MLflow side: one run per ``kedro run`` (hooks), step metrics (writer), records."""
