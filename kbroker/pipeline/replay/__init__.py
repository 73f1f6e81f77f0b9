"""An archive's records back into a topic."""
