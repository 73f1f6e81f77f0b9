"""Both brokers with SASL: the same sequences of frames, the same clients, the same answers."""
