"""The three formats of schemas: Avro, JSON Schema, Protobuf.

The only I/O is the Protobuf compiler's directory and process. `parse` (parsing.py) returns a `Schema` (common.py) for a
text. `compatible` (parsing.py) returns the reasons for which a reader's schema cannot read data of a writer's schema.
levels.py composes the seven levels of compatibility; rules.py checks metadata and rule sets.

All functions are synchronous, may take a second for the largest schemas, and keep no state between calls: call them on
a worker thread. Texts and values may be hostile: common.py defines the limits, and exceeding one raises `InvalidSchema`
or `InvalidValue`. Names of references are only names: this package never opens a file or an address that a schema
names.
"""
