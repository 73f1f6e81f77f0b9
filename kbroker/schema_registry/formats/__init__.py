"""The three formats of schemas: Avro, JSON Schema, Protobuf. No I/O but the Protobuf compiler's directory and process.

`parse` (parsing.py) makes a `Schema` (common.py) of a text; `compatible` (parsing.py) says what a reader's schema
cannot read of a writer's; levels.py composes the seven levels of compatibility; rules.py checks metadata and rule sets.

Everything is synchronous, may take a second for the largest schemas, and keeps no state between calls: it belongs on a
worker thread. Texts and values are hostile: each limit is in common.py, and ends in `InvalidSchema` or `InvalidValue`.
Names of references are only names: nothing here opens a file or an address that a schema names.
"""
