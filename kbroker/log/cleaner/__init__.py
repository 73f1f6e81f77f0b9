"""Log compaction keeps the last record of each key of a partition. A separate process does the work."""
