"""Log compaction: for each key of a partition the last record stays. A separate process does the work."""
