"""Checks records against a schema registry before they are appended (Confluent Server's schema validation).

Owns the meaning of a topic's `confluent.*.schema.validation` configs. schema_tokens.py finds the schema that a record
names. schema_lookup.py and schema_check.py check whether the registry allows this schema. value_worker.py checks
whether the value matches the schema, in a process of its own. Also owns the remaining batch if bad records are moved to
another topic. Never appends.
"""
