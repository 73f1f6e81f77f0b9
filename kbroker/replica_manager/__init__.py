"""A broker's replicas in a cluster: led and followed as the controller says, copied, kept in sync."""
