"""Delegation tokens (KIP-48): what they are, which there are, and who may do what with them."""
