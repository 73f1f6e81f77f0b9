"""Clients' own metrics (KIP-714): the subscriptions, and the checks of pushes. A receiver processes the pushes."""
