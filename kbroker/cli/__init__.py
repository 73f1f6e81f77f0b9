"""The command line: one module per verb, which is a thin layer over a Kafka client."""
