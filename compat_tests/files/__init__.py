"""Data directories that one broker writes and the other reads: Apache Kafka's by kbroker, and kbroker's by Kafka."""
