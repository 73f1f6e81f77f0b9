"""What `kbroker log check|dump|repair` reads, without a broker."""
