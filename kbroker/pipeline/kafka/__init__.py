"""The jobs' own requests to a Kafka cluster, beside Spark's connector."""
