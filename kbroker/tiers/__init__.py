"""Tiered storage in the broker (KIP-405): the broker copies closed segments to remote storage, and reads them there."""
