"""The log on disk: partitions, their segments and indexes, recovery, retention."""
