"""Tuning for speed: what can be chosen, what is tried, and how it is timed."""
