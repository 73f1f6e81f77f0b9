"""A broker as a member of a cluster: registered, told of the cluster's state, and asking for changes of it."""
