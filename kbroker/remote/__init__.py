"""Segments of partitions in remote storage (KIP-405): their states, their objects, and the store of objects."""
