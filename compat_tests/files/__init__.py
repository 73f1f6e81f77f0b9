"""Data directories that change hands: written by Apache Kafka and read by kbroker, and the other way round."""
