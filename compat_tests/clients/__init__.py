"""Unchanged Kafka clients, one package each, doing the same things to both brokers."""
