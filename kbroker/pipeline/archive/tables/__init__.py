"""Archives as tables of other engines: Iceberg and Delta."""
