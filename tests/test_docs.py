"""The code of the README and of the guides runs, and prints what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def blocks(page):
    """Return (code, printed) for each ```python block, and the ```text block after it, if any."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    following = [*found[1:], ("", "")]
    return [
        (code, after if kind == "text" else None)
        for (language, code), (kind, after) in zip(found, following)
        if language == "python"
    ]


def test_the_readme_has_code_and_output():
    assert len(blocks(PAGES[0])) > 3
    assert any(printed for _, printed in blocks(PAGES[0]))


@pytest.mark.bfloat16
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs_in_order_and_prints_what_the_page_says(page, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # for the files that it writes
    namespace = {}
    for code, printed in blocks(page):
        exec(compile(code, str(page), "exec"), namespace)
        out = capsys.readouterr().out
        assert printed in (None, out)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link
