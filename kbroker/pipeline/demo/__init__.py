"""The tour, which runs all jobs, and the chart at its end."""
