"""What the composition root puts between parts that may not know each other."""
