"""Pages as text: complete in themselves, every value escaped."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mxmp.html import Section, cards, facts, fragment, notes, page
from tests.html.runs import HOSTILE, whole

ROOT = Path(__file__).resolve().parents[2]
VOID = {"meta", "link", "input", "br", "img", "wbr"}


class Reader(HTMLParser):
    """The elements of a page with their attributes, and whether each that is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open, self.wrong, self.text = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("make", [page, fragment])
def test_each_element_is_closed_and_nothing_is_named_that_would_be_loaded(make):
    read = Reader(make("A run", whole(), "O1"))
    assert not read.wrong and not read.open
    assert [tag for tag, _ in read.found].count("script") == 1
    assert not [tag for tag, _ in read.found if tag in ("img", "iframe", "object", "embed", "base")]
    links = [value for _, attrs in read.found for name, value in attrs.items() if name in ("src", "href", "xlink:href")]
    assert all(link.startswith(("#", "data:,")) for link in links)
    assert "url(" not in "".join(read.text) and "@import" not in "".join(read.text)


def test_hostile_text_is_escaped_everywhere():
    text = page(HOSTILE, whole(), HOSTILE)
    assert "window.broken" in text and "<script>window" not in text and "<img" not in text
    read = Reader(text)
    assert not [name for _, attrs in read.found for name in attrs if name.startswith("on")]
    sections = [
        Section(HOSTILE, (cards([(HOSTILE,) * 3]), facts([(HOSTILE,) * 2]), notes(HOSTILE, [HOSTILE])), HOSTILE)
    ]
    assert "<img" not in page("t", sections)


def test_sections_of_one_title_have_anchors_of_their_own():
    text = page("t", [Section("Two words", ()), Section("two-words", ()), Section("∞", ())])
    assert re.findall(r'<section id="(.*?)"', text) == ["two-words", "two-words-2", "section"]


def test_control_characters_do_not_reach_the_page():
    assert "\x1b" not in page("a\x1b[31m", [Section("s", (notes("Note", ["b\x1b[0m"]),))], "c\x1b")


def test_jinja_is_imported_when_the_first_page_is_made():
    code = """
import sys, mxmp, mxmp.html, mxmp.report
assert not {"jinja2", "markupsafe"} & set(sys.modules)
mxmp.Policy.parse("O1")._repr_html_()
assert "jinja2" in sys.modules and "mxnet" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_installed_has_the_templates(tmp_path):
    """Built as a wheel's content is, then used from there with the sources out of reach."""
    command = [sys.executable, "setup.py", "-q", "build_py", "-d", str(tmp_path / "lib")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    code = "import mxmp.html as h; print(h.__file__); print(h.page('t', [h.Section('s', (h.facts([('a', 'b')]),))]))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "lib", capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(tmp_path / "lib")) and "<dt>a</dt>" in done.stdout
    names = {path.name for path in (ROOT / "mxmp" / "html" / "templates").iterdir()}
    assert {path.name for path in (tmp_path / "lib" / "mxmp" / "html" / "templates").iterdir()} == names
