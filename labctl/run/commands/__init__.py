"""Run the commands that measure: sweep, self-test, overhead, exit prices, host tune."""
