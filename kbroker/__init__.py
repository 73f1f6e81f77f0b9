"""kbroker: an event-streaming broker that speaks Apache Kafka's wire protocol."""
