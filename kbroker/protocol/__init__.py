"""Bytes to messages and back. No I/O, no asyncio, nothing of ours above it."""
