"""Export a run's numbers for other programs: JSON, CSV, Parquet, OpenMetrics."""
