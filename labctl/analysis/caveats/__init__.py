"""Write the caveats of an answer: the run's setting, its gaps, and broken assumptions."""
