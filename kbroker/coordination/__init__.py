"""The runtime of replicated state machines, which the group, transaction and share coordinators use."""
