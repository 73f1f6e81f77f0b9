"""One module per API: its request and response, for every version that Apache Kafka 4.4 serves."""
