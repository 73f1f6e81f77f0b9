"""A broker as a member of a cluster: its registration, its copy of the cluster's state, its requests for changes."""
