"""What assigns partitions to the members of consumer groups."""
