"""The events of a website, simulated or read from access logs, which are sent to a topic."""
