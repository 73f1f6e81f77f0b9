"""Work on a store: copies of the broker's state, the restore of a lost data directory, and the check of segments."""
