"""Log compaction: for each key of a partition the last record stays. A process of its own does the work."""
