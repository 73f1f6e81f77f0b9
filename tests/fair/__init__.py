"""One client never holds up another: long requests of every API, and how long a quiet client waits beside them."""
