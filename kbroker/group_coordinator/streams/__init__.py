"""The decisions about streams groups (KIP-1071)."""
