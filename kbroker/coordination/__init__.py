"""The runtime of replicated state machines: what the group and the transaction coordinator run on."""
