"""What decides about streams groups (KIP-1071)."""
