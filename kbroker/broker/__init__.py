"""One broker, put together: node.py is the composition root, the others stand between its parts."""
