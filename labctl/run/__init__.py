"""The engine: boots, runs trials in plan order, invalidates, retries, resumes, cleans up."""
