"""Visits by organisation and day, counted by a stream from a topic, or recounted from an archive."""
