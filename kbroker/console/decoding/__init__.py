"""Bytes of records in readable form: JSON, text, hex, Avro, Protobuf.

Owns the choice of the form. Records may be hostile, so all work here is bounded in time and memory.
"""
