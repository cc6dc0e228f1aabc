"""Comparisons that nobody measured, for tests of what is made of them."""

from __future__ import annotations

from benchmarks.comparison import FLOAT32, OWN, PEER, Column, Comparison

STEADY = (1.0, 1.01, 0.99)
"""Relative times of rounds that scatter little."""

SCATTERED = (1.0, 1.6, 0.7)


def column(front, who, dtype, seconds, title=None, rounds=STEADY, **others):
    times = [seconds * each for each in rounds] if seconds else []
    return Column(front, who, title or f"{who} {dtype}", dtype, times, **others)


def compared(own, peer=None, base=1.0, rounds=STEADY, dtype="bfloat16", gluon=None):
    """Return a network of two fronts: seconds of float32, of contrib.amp, of mxmp; a text is why mxmp does not run."""
    columns = []
    for front, mine in (("symbolic", own), ("gluon", own if gluon is None else gluon)):
        seconds, missing = (0, mine) if isinstance(mine, str) else (mine, "")
        columns += [
            column(front, FLOAT32, "float32", base, rounds=rounds),
            column(front, PEER, dtype, peer),
            column(front, OWN, dtype, seconds, missing=missing),
            column(front, OWN, "float32", base),
        ]
    return Comparison(columns)
