"""Visits by organisation and day: streamed from a topic, recounted from an archive."""
