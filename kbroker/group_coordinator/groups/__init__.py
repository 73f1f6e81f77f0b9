"""The state of groups of both protocols, without requests and records."""
