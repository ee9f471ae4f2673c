"""detpipe: object detection as a Kedro project, tracked in MLflow."""

__version__ = "0.1.0"
