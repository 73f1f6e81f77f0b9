"""Clients' own metrics (KIP-714): who is to push which, and whether a push counts. A receiver takes what is pushed."""
