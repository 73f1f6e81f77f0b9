"""Unchanged Kafka clients, one package for each. They do the same things to both brokers."""
