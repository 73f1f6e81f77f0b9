"""Tier 1: the same requests to both brokers, with their decoded answers compared field by field."""
