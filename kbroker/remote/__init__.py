"""Segments of partitions in remote storage (KIP-405): which there are, their objects, and the store of objects."""
