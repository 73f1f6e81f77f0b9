"""Log directories: their contents, and the directory of each partition."""
