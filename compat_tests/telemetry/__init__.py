"""Clients that push their metrics to both brokers, each with a receiver (KIP-714)."""
