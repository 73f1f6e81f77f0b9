"""Share partitions: what a share group has done with the records of one partition (KIP-932)."""
