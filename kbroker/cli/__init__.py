"""The command line: one module per verb, thin over a Kafka client."""
