"""Who a client is, and what it may do. Knows values and decisions; sockets, stores and requests are others'."""
