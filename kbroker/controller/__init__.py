"""Leadership and metadata: the cluster's state, the decisions about it, and its storage."""
