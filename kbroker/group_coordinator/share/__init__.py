"""Share groups (KIP-932): membership, and the share partitions whose state is initialised."""
