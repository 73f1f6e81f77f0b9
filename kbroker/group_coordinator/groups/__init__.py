"""The groups of both protocols: their state alone, no requests, no records."""
