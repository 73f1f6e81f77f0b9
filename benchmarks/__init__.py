"""The measured claims, each next to Apache Kafka in one run."""
