"""Log directories: what a broker keeps in each, and which partition is where."""
