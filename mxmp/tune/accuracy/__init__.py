"""Precision by measured accuracy: the operators that have to stay in float32 for a metric to be as good."""
