"""Who leads what: the cluster's state, decisions over it, and where it is stored."""
