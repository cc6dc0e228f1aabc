"""The maintainer's pages name files, functions and tests that are there."""

import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "maintaining").glob("*.md"))
CODE = re.compile(r"`([^`\n]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_files_and_modules_that_exist(page):
    names = CODE.findall(page.read_text(encoding="utf-8"))
    files = {name for name in names if re.match(r"(tests|mxmp|tools|benchmarks|symbols)/[\w/]+(\.\w+)?$", name)}
    assert sorted(name for name in files if not (ROOT / name).exists()) == []


def test_each_workaround_is_where_the_list_says():
    text = (ROOT / "docs" / "maintaining" / "workarounds.md").read_text(encoding="utf-8")
    places = re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)
    assert len(places) > 30
    for place in places:
        pkgutil.resolve_name(f"mxmp.{place}")


def test_the_owners_of_states_are_where_the_page_says():
    text = (ROOT / "docs" / "maintaining" / "changes.md").read_text(encoding="utf-8")
    for name in re.findall(r"`(train\.[\w.]+)`", text):
        pkgutil.resolve_name(f"mxmp.{name}")
