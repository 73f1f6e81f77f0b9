"""Several brokers and their ZooKeeper as processes of one machine: what `kbroker cluster` starts."""
