"""TLS without sockets: stores of keys, contexts, names in certificates, and the bytes of one connection."""
