"""An application of Java's KafkaShareConsumer, run on both brokers."""
