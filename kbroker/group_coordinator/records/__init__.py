"""The content of `__consumer_offsets`: the bytes of groups and offsets, in Kafka's record formats."""
