"""A broker as a member of a cluster: its registration, its view of the cluster, and its requests for changes."""
