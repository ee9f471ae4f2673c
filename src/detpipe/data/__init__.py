"""From somebody's folder to batches: readers, the check, splits, the stream."""
