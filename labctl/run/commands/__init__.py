"""Commands that run something: sweep, self-test, overhead, exit prices, host tune."""
