"""Keys and values by the schemas of a registry: as typed columns of an archive, and as events."""
