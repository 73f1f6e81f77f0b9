"""Replay: an archive's records are sent to a topic."""
