"""What is seen of a broker from outside over HTTP: metrics for Prometheus, and whether it lives and serves."""
