"""Pictures for the gallery: what each example prints, from its docstring, in large letters."""

import ast
import re
import textwrap
from pathlib import Path

from matplotlib.figure import Figure

AFTER_SPHINX_GALLERY = 900  # which writes the pages when the builder is there, at 500


def output(script):
    """Return what a script prints: the block of its docstring behind the first ``::``."""
    docstring = ast.get_docstring(ast.parse(script.read_text("utf-8")))
    return textwrap.dedent(re.search(r"::\n\n((?: {4}.*\n?)+)", docstring).group(1))


def draw(text, path):
    """Draw the beginning of a text."""
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, 32, subsequent_indent="  ")]
    figure = Figure((4, 2.8), dpi=100, facecolor="#1d2630")
    figure.text(0.04, 0.95, "\n".join(lines[:10]), va="top", family="monospace", size=13, color="#d7e3ee")
    figure.savefig(path)


def draw_all(app):
    """Draw the picture of each page of the gallery, in the place of the one that all have alike."""
    for script in sorted(Path(app.srcdir, "../examples").glob("*.py")):
        if re.search(app.config.sphinx_gallery_conf["ignore_pattern"], str(script)):
            continue
        draw(output(script), Path(app.srcdir, "gallery", "images", "thumb", f"sphx_glr_{script.stem}_thumb.png"))


def setup(app):
    """Draw when the pages were written."""
    app.connect("builder-inited", draw_all, priority=AFTER_SPHINX_GALLERY)
    return {"parallel_read_safe": True}
