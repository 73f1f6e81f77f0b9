"""TLS without sockets: key stores, contexts, names in certificates, and the bytes of one connection."""
