"""Several brokers and their ZooKeeper as processes on one machine, which `kbroker cluster` starts."""
