"""What the README shows, as it stands there."""
