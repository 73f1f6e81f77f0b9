"""What a partition knows of producers: sequences, transactions, snapshots."""
