"""Delegation tokens (KIP-48): their form, the existing ones, and the permissions on them."""
