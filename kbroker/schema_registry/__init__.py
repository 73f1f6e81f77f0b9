"""A schema registry with the REST API of Confluent's, over the topic `_schemas`."""
