"""Identities and permissions of clients. Contains only values and decisions: no sockets, stores or requests."""
