"""What the jobs ask a Kafka cluster by themselves, beside Spark's connector."""
