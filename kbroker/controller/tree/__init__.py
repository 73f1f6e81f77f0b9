"""The cluster's metadata as a tree of znodes: one seam, with ZooKeeper or memory behind it."""
