"""The README's code runs, and prints what the README says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks():
    """Return (code, printed) for each ```python block, and the ```text block after it, if any."""
    found = FENCE.findall(README.read_text(encoding="utf-8"))
    following = [*found[1:], ("", "")]
    return [
        (code, after if kind == "text" else None)
        for (language, code), (kind, after) in zip(found, following)
        if language == "python"
    ]


def test_readme_has_code_and_output():
    assert len(blocks()) > 3
    assert any(printed for _, printed in blocks())


@pytest.mark.bfloat16
def test_readme_code_runs_in_order_and_prints_what_it_says(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # for the files that it writes
    namespace = {}
    for code, printed in blocks():
        exec(compile(code, str(README), "exec"), namespace)
        out = capsys.readouterr().out
        assert printed in (None, out)
