"""Spark itself: the session and its JVM, signals, tasks, checkpoints."""
