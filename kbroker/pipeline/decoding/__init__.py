"""Decodes keys and values with the schemas of a registry, into typed columns of an archive and into events."""
