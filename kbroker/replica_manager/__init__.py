"""A broker's replicas in a cluster: leads and follows partitions on the controller's requests, and copies records."""
