"""The topologies of Kafka Streams applications, their check against the topics, and their tasks."""
