"""The jobs' own requests to a Kafka cluster, in addition to the requests of Spark's connector."""
