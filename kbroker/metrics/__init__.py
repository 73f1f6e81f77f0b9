"""The broker's state over HTTP: metrics for Prometheus, and the checks whether the broker is alive and ready."""
