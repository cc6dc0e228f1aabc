"""Sphinx: the guides, and a reference made from the docstrings. ``make docs`` builds it."""

import re
from pathlib import Path

project = "mxmp"
copyright = "the mxmp developers"
version = release = re.search(
    r'^__version__ = "([^"]+)"', (Path(__file__).parents[1] / "mxmp" / "__init__.py").read_text("utf-8"), re.MULTILINE
).group(1)

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser"]
exclude_patterns = ["build"]
html_theme = "alabaster"

napoleon_use_ivar = True  # fields of named tuples are documented once
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say what arguments are
suppress_warnings = ["myst.xref_missing"]  # links to files beside docs/, such as the README


def setup(app):
    """Leave out what `mxmp.mxnet_private` gives the classes that inherit from MXNet's."""
    app.connect("autodoc-skip-member", lambda app, what, name, *rest: True if name.startswith("mx_") else None)
