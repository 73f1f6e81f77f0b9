"""The assembly of one broker: node.py is the composition root, the other modules connect its parts."""
