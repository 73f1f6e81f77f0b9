"""An order service: it receives orders, bills them in transactions, and books each once."""
