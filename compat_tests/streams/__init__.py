"""A Kafka Streams application with exactly-once semantics, on both brokers."""
