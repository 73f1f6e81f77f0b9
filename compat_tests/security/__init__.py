"""The same clients with the same secrets at both brokers."""
