"""Bytes of records as people read them: JSON, text, hex, Avro, Protobuf.

Owns what bytes are taken for. Records are hostile: nothing here takes more time or memory than a bound.
"""
