"""The runtime of replicated state machines, used by the group and the transaction coordinator."""
