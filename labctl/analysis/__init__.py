"""Pure statistics over loaded runs: effects, intervals, verdicts, checks of the run."""
