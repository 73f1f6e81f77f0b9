"""The assembly of one broker. node.py is its composition root; the other modules connect its parts."""
