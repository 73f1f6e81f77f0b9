"""The assignors of partitions to the members of consumer groups."""
