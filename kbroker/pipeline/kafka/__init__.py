"""The jobs' own requests to a Kafka cluster, in addition to those of Spark's connector."""
