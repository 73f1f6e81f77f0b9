"""The metrics that clients push (KIP-714): subscriptions, and the checks of pushes. A receiver processes the pushes."""
