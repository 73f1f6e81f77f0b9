"""Requests to other brokers: one client stack for fetchers, markers and the controller."""
