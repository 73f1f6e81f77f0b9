"""The two sides of a replicated partition, as state machines without I/O."""
