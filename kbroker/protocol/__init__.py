"""Decodes bytes to messages, and encodes messages. No I/O, no asyncio, and no module of a layer above."""
