"""Quotas of clients: pure rules, without storage or enforcement."""
