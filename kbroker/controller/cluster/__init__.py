"""The controller of a cluster, on a tree of znodes: one broker decides, and sends its decisions to the others."""
