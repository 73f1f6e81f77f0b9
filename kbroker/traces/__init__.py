"""Spans of requests for OpenTelemetry: measurements of requests, which are exported to a collector."""
