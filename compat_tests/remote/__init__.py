"""Remote log metadata (KIP-405): Apache Kafka's classes and ours, given the same records."""
