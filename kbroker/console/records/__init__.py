"""Searching, following and writing records on the pages."""
