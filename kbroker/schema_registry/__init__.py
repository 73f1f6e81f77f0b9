"""A schema registry with the REST API of Confluent's registry, over the topic `_schemas`."""
