"""Delegation tokens (KIP-48): their form, the existing tokens, and the permissions on tokens."""
