"""The measured claims, each beside Apache Kafka in one run."""
