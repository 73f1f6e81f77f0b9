"""The groups of both protocols as they are: state alone, no requests, no records."""
