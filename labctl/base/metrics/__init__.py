"""Define the table of metrics: a row for each, in the order of docs/metrics.md."""
