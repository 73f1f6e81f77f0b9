"""Configuration: the existing keys, their allowed values, and a broker's settings.

Owns the table of keys (`topic_keys.txt`, `group_keys.txt`, `broker_keys.txt`), the broker's configuration and the docs
page. Parses, validates and formats values, with Kafka's own messages. Never opens a socket, and never uses the log.
From kbroker it imports only `kbroker.protocol`.
"""
