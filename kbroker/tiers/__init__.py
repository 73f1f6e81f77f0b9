"""Tiered storage in the broker (KIP-405): closed segments go to remote storage, and are read from there."""
