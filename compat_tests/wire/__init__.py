"""Tier 1: the same requests to both brokers, the decoded answers compared field by field."""
