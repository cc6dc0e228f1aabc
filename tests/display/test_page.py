"""Pages as text: complete in themselves, every value escaped."""

import math
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mxmp.display import Column, Facts, Figures, Notes, Section, Table
from mxmp.display.page import fragment, page
from tests.display.drawn import drawn
from tests.display.runs import HOSTILE, whole

ROOT = Path(__file__).resolve().parents[2]


def elements(text):
    """Return the elements of a page, style and script left out; read as XML, so that one that is not closed fails."""
    without_code = re.sub(r"<!DOCTYPE html>|<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)
    return list(ElementTree.fromstring(re.sub(r"<((?:meta|link|wbr)[^>]*)>", r"<\1/>", without_code)).iter())


@pytest.mark.parametrize("make", [page, fragment])
def test_each_element_is_closed_and_nothing_is_named_that_would_be_loaded(make):
    text = make("A run", whole()._sections(), "O1")
    assert not {each.tag for each in elements(text)} & {"img", "iframe", "object", "embed", "base"}
    links = [value for each in elements(text) for name, value in each.items() if name in ("src", "href", "xlink:href")]
    assert all(link.startswith(("#", "data:,")) for link in links) and "url(" not in text and "@import" not in text


def test_hostile_text_is_escaped_everywhere():
    blocks = Figures([(HOSTILE,) * 3]), Facts([(HOSTILE,) * 2]), Notes([HOSTILE], HOSTILE)
    text = page(HOSTILE, [*whole()._sections(), Section(HOSTILE, blocks, HOSTILE)], HOSTILE)
    assert "broken = true" in text and "<script>window" not in text and "<img" not in text
    assert not [name for each in elements(text) for name in each.keys() if name.startswith("on")]


def test_control_characters_do_not_reach_the_page():
    assert "\x1b" not in page("a\x1b[31m", [Section("s", (Notes(["b\x1b[0m"]),))], "c\x1b")


INSTALLED = """
import sys, mxmp, mxmp.display as display, mxmp.report
assert not {"jinja2", "markupsafe"} & set(sys.modules)
mxmp.Policy.parse("O1")._repr_html_()
assert "jinja2" in sys.modules and "mxnet" not in sys.modules
from mxmp.display.page import page
print(display.__file__, page("t", [display.Section("s", [display.Facts([("a", "b")])])]))
"""


def test_an_installed_package_has_the_templates_and_imports_jinja_when_the_first_page_is_made(tmp_path):
    """Built as a wheel's content is, then used from there with the sources out of reach."""
    lib, templates = tmp_path / "lib", Path("mxmp", "display", "templates")
    command = [sys.executable, "setup.py", "-q", "build_py", "-d", str(lib)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    done = subprocess.run([sys.executable, "-c", INSTALLED], cwd=lib, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(lib)) and "<dt>a</dt>" in done.stdout
    assert {path.name for path in (lib / templates).iterdir()} == {path.name for path in (ROOT / templates).iterdir()}


def test_numbers_are_never_broken_and_names_wrap_at_their_ends():
    text = drawn(Facts([("a_long_name", "loss scale 32,768,conv/relu.0 to 1.5, 67 MB, 3 % of 5 bytesize")]))
    assert "a_<wbr>long_<wbr>name" in text and "32,768,<wbr>conv/<wbr>relu.<wbr>0 to 1.5" in text
    assert "67\N{NO-BREAK SPACE}MB, 3\N{NO-BREAK SPACE}% of 5 bytesize" in text


# ---------------------------------------------------------------------- tables


def cells(text):
    body = re.search("<tbody>(.*?)</tbody>", text, re.DOTALL).group(1)
    return [re.findall(r"<t[hd] ?(.*?)>(.*?)</t[hd]>", line) for line in body.split("<tr>")[1:]]


@pytest.mark.parametrize(
    "kind, value, text, key",
    [
        ("number", 65504, "65,504", "65504.0"),
        ("number", math.inf, "∞", "Infinity"),
        ("number", None, "–", ""),
        ("number", float("nan"), "NaN", ""),
        ("share", 0.034, "3.4 %", "0.034"),
    ],
)
def test_a_cell_has_its_text_and_what_it_is_sorted_by(kind, value, text, key):
    rows = cells(drawn(Table("t", [Column("name"), Column("v", kind)], [("a", value), ("b", 1)])))
    assert rows[0][1] == (f'class="{kind}" data-key="{key}"', text)


def test_bars_are_parts_of_the_largest_and_others_have_none():
    rows = [("a", 0.5), ("b", 2.0), ("c", None), ("d", math.inf), ("e", -1.0), ("f", 0.0)]
    text = drawn(Table("t", [Column("name"), Column("v", "bar")], rows))
    assert re.findall(r"--part:([\d.]+)", text) == ["0.25", "1.0", "0", "1.0", "0", "0"]


def test_columns_without_a_value_are_left_out_and_the_first_stays():
    table = Table("t", [Column(""), Column("empty"), Column("some", "number")], [("", "", None), ("", None, 1)])
    assert re.findall(r'<th scope="col" class="(\w+)"', drawn(table)) == ["text", "number"]
    assert re.findall(r'<th scope="col" class="(\w+)"', drawn(Table("t", table.columns, []))) == ["text", "text", "number"]
