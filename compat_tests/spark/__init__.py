"""Tier 3: Spark's own Kafka source and sink, unchanged, against both brokers."""
