"""Write what could change an answer: the run's setting, its gaps, and broken assumptions."""
