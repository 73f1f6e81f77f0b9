"""Other brokers for tests, tried feature by feature beside kbroker: see docs/testing-compared.md."""
