"""Sphinx: guides, gallery and reference. ``make docs`` builds them."""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS / "extensions"))

project = "mxmp"
copyright = "the mxmp developers"
version = release = re.search(
    r'^__version__ = "([^"]+)"', (ROOT / "mxmp" / "__init__.py").read_text("utf-8"), re.MULTILINE
).group(1)

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "networks",
    "commands",
    "operators",
    "thumbnails",
    "tour",
]
exclude_patterns = ["build", "extensions"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"mxmp {release}"
html_static_path = ["static"]
html_css_files = ["mxmp.css"]
html_js_files = ["search.js"]
html_theme_options = {"source_directory": "docs/"}

napoleon_use_ivar = True  # fields of named tuples are documented once
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
suppress_warnings = ["myst.xref_missing"]  # links to files beside docs/, such as the README

# Pages and notebooks of the examples. Nothing runs here. The docstring of each has its output, which tests compare.
sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["gallery"],
    "plot_gallery": False,
    "filename_pattern": r"\.py$",
    "ignore_pattern": r"(plots|sample_data)\.py$",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 1e9,
    "show_signature": False,
}
