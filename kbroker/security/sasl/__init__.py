"""SASL: the mechanisms as state machines, and what of the configuration they need."""
