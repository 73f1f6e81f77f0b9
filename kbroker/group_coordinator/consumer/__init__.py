"""Consumer groups (KIP-848): the coordinator assigns partitions, members only acknowledge."""
