"""What Kafka Streams applications run: topologies, held against the topics, and their tasks."""
