"""What a broker asks of other brokers: one client stack for fetchers, markers and the controller."""
