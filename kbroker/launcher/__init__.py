"""The launcher of `kbroker cluster`: it runs several brokers and their ZooKeeper as processes on one machine."""
