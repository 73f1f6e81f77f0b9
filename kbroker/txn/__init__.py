"""Producer ids, for idempotence across sessions."""
