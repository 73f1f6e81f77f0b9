"""The suites of the examples against Apache Kafka."""
