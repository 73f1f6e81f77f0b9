"""Leadership and metadata: the cluster's state, decisions over it, and its storage."""
