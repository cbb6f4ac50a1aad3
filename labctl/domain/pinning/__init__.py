"""Decide which CPU each thread of a guest gets."""
