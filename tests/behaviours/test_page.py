"""docs/behaviours.md names tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ROW = re.compile(r"^\| (\d+) \| \w+ \| .+ \| `([\w/]+\.py)::(\w+)` \|$", re.MULTILINE)


def test_each_behaviour_has_a_test_that_exists():
    page = (ROOT / "docs" / "behaviours.md").read_text(encoding="utf-8")
    rows = ROW.findall(page)
    assert [int(number) for number, *_ in rows] == list(range(1, 61)) and page.count("\n| ") == 61
    trees = {file: ast.parse((ROOT / file).read_text(encoding="utf-8")) for file in {file for _, file, _ in rows}}
    there = {(file, node.name) for file, tree in trees.items() for node in tree.body if hasattr(node, "name")}
    assert [(file, test) for _, file, test in rows if (file, test) not in there] == []
