"""A broker's replicas in a cluster: led and followed on the controller's requests, copied, kept in sync."""
