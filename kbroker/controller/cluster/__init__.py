"""The controller of a cluster on a metadata tree: one broker decides, and sends the others its decisions."""
