"""Clients that push their metrics, to both brokers with a receiver each (KIP-714)."""
