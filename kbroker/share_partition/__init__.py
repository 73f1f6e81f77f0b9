"""Share partitions: the progress of a share group with the records of one partition (KIP-932)."""
