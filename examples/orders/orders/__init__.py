"""An order service: orders come in, are billed in transactions, and are booked once each."""
