"""One client never holds up another: long requests of every API, and a quiet client's waits beside them."""
