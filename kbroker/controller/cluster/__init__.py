"""The controller of a cluster on a metadata tree: one broker decides, the others are told."""
