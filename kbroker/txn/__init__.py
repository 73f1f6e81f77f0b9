"""The transaction coordinator, the writing of its markers, and producer ids."""
