"""Identities and permissions of clients. Has values and decisions only; no sockets, stores or requests."""
