"""The cluster's metadata as a tree of znodes: one interface, implemented by ZooKeeper or in memory."""
