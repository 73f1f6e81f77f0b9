"""Quotas of clients: pure rules; where they are stored and what becomes of them is others' business."""
