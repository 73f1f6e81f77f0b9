"""One segment of a partition: its log file and its indexes."""
