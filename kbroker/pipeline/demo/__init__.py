"""The tour of all jobs, and the chart at its end."""
