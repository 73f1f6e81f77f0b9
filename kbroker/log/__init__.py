"""Bytes on disk: partitions, their segments and indexes, recovery, retention."""
