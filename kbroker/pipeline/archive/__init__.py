"""Topics as Parquet files, each offset once: archive, verify, optimize."""
