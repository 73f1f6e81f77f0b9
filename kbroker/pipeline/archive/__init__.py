"""Topics as Parquet files that contain each offset once: archive, verify, optimize."""
