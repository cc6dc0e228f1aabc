"""The search of the pages: a question finds its heading, and a pasted message its section on the page of errors."""

import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest

from tests.display import browser

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs"
CONF = f"""
extensions = ["myst_parser"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]
root_doc = "questions"
html_static_path = [{str(DOCS / "static")!r}]
html_js_files = ["search.js"]
"""
QUERIES = {
    "AMX freeze not faster": "questions.html#amx-is-on-and-freeze-is-not-faster-why",
    "weight decay": "questions.html#learning-rate-weight-decay-and-adam-s-epsilon-in-float16-do-i-change-them",
    "tensor cores used": "questions.html#how-do-i-see-on-a-gpu-whether-tensor-cores-are-used",
    "mxmp.errors.UnscaledLossError: step: the loss of this step was not scaled, but the loss scale is 256.0.": "errors.html#the-loss-of-this-step-was-not-scaled",
    "ConvertError: block 'mine_' (HybridSequential) is not converted; call convert first.": "errors.html#is-not-converted-call-convert-first",
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return the folder of both pages, built with the script of the search."""
    pytest.importorskip("myst_parser", reason="make docs installs it")
    source = tmp_path_factory.mktemp("pages")
    (source / "conf.py").write_text(CONF)
    for page in ("questions.md", "guides/troubleshooting/errors.md"):
        (source / Path(page).name).write_text((DOCS / page).read_text("utf-8"), "utf-8")
    subprocess.run([sys.executable, "-m", "sphinx", "-q", "-b", "html", source, source / "html"], check=True, capture_output=True)
    return source / "html"


@pytest.fixture(scope="module")
def window():
    with browser.started() as page:
        yield page.browser


@pytest.mark.parametrize("query", QUERIES)
def test_the_first_result_is_the_section(query, pages, window):
    from selenium.webdriver.support.ui import WebDriverWait

    window.get(f"{(pages / 'search.html').as_uri()}?q={urllib.parse.quote(query)}")
    found = WebDriverWait(window, 10).until(lambda _: window.find_elements("css selector", "ul.search a"))
    assert found[0].get_attribute("href").endswith(QUERIES[query])
