"""The producer state of a partition: sequences, transactions, snapshots."""
