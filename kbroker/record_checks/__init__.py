"""Records are compared with a schema registry before they are appended (Confluent Server's schema validation).

Owns the meaning of a topic's `confluent.*.schema.validation` configs: which schema a record names (schema_tokens.py),
whether the registry allows it (schema_lookup.py, schema_check.py), whether the value is one of that schema
(value_worker.py, in a process of its own), and what is left of a batch whose bad records go elsewhere. Never appends.
"""
