"""Configuration: the existing keys, their allowed values, and a broker's settings.

Owns the table of keys (`topic_keys.txt`, `group_keys.txt`, `broker_keys.txt`), parsing, validation and formatting of
values in Kafka's own words, the broker's configuration and the docs page. Never opens a socket and never touches the
log. Of kbroker it imports only `kbroker.protocol`.
"""
