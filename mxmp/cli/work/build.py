"""``mxmp build``: compiles the rounding operators."""

from __future__ import annotations

from ...rounding import build


def run() -> str:
    """Compile the operators, and return where they are kept."""
    return f"kept: {build.build()}"
