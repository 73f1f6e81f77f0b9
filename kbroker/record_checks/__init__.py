"""Checks records against a schema registry before they are appended (Confluent Server's schema validation).

Owns the meaning of a topic's `confluent.*.schema.validation` configs: which schema a record names (schema_tokens.py),
whether the registry allows it (schema_lookup.py, schema_check.py), and whether the value matches the schema
(value_worker.py, in a process of its own). Also owns the remaining batch if bad records are moved to another topic.
Never appends.
"""
