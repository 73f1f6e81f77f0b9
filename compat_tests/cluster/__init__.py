"""What clients see of three brokers of Apache Kafka 3.9.1 or kbroker while some are killed, stopped and frozen."""
