"""The readers of `kbroker log check|dump|repair`, which need no broker."""
