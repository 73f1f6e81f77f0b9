"""Spans of requests, for OpenTelemetry: what is measured of a request, exported where somebody collects it."""
