"""SASL: the mechanisms as state machines, and their configuration."""
