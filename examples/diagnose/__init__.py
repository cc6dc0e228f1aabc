"""Broken runs, each with the tool that explains it."""
