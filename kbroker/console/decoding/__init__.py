"""Bytes of records in readable form: JSON, text, hex, Avro, Protobuf.

Owns the choice of the form. Records are hostile: all work here is bounded in time and memory.
"""
