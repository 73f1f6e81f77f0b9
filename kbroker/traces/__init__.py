"""Spans of requests, for OpenTelemetry: measurements of requests, exported to a collector."""
