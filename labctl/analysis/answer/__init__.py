"""Make the answer of a run: its grade, its sentences, and the next step."""
