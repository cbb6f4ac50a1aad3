"""Tunings and studies, loaded, validated, frozen; and the plan, made by pure functions."""
