"""The table of behaviours is whole, and every test that it names is there and can fail."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.behaviours.misuse import MISUSE
from tests.behaviours.table import BEHAVIOURS

TESTS = Path(__file__).resolve().parent.parent
ROWS = {**{str(number): row for number, row in BEHAVIOURS.items()}, **MISUSE}
CHECKS = ("assert", "check", "raises", "warns")


@functools.lru_cache(maxsize=None)
def parse(file):
    return ast.parse((TESTS / file).read_text(encoding="utf-8"))


def strings(tree):
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def find(tree, name):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name]


def dotted(node):
    """Return the names that a decorator or a called function is made of: ``pytest.mark.skip``."""
    if isinstance(node, ast.Call):
        return dotted(node.func)
    return [*dotted(node.value), node.attr] if isinstance(node, ast.Attribute) else [getattr(node, "id", "")]


def is_off(test, tree):
    """Return whether a test never runs, or may fail unnoticed."""
    marks = {dotted(decorator)[-1] for decorator in test.decorator_list}
    for node in tree.body:
        targets = [getattr(target, "id", "") for target in node.targets] if isinstance(node, ast.Assign) else []
        if "pytestmark" in targets:
            marks |= {dotted(part)[-1] for part in getattr(node.value, "elts", [node.value])}
    skips = [
        s for s in (*tree.body, *test.body) if isinstance(s, ast.Expr) and dotted(s.value)[-1] in ("skip", "xfail")
    ]
    return bool(marks & {"skip", "xfail"} or skips)


def can_fail(test):
    """Return whether a test asserts something, itself or through a function named for it."""
    return any(
        isinstance(node, ast.Assert) or isinstance(node, ast.Call) and dotted(node)[-1].startswith(CHECKS)
        for node in ast.walk(test)
    )


def test_every_behaviour_has_a_row():
    assert sorted(BEHAVIOURS) == list(range(1, 46))
    assert len(MISUSE) == 9


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_names_tests_that_run_and_can_fail(row):
    assert row.line and row.tests
    for entry in row.tests:
        file, _, test = entry.partition("::")
        name, _, text = test.rstrip("]").partition("[")
        tree = parse(file)
        tests = find(tree, name)
        assert name.startswith("test_") and len(tests) == 1, f"{file} has {len(tests)} tests named {name}"
        assert can_fail(tests[0]), f"{entry} asserts nothing"
        assert not is_off(tests[0], tree), f"{entry} is skipped"
        assert not text or any(text in found for found in strings(tree)), f"{file} has no parameter {text!r}"


OFF = {
    "a decorator": "@pytest.mark.skip\ndef test_a(): assert f()",
    "a decorator with a reason": "@pytest.mark.xfail(reason='x')\ndef test_a(): assert f()",
    "a mark of the file": "pytestmark = [pytest.mark.skip]\ndef test_a(): assert f()",
    "a call in the file": "pytest.skip('x', allow_module_level=True)\ndef test_a(): assert f()",
    "a call in the test": "def test_a():\n    pytest.skip('x')\n    assert f()",
}


@pytest.mark.parametrize("source", OFF.values(), ids=OFF)
def test_a_skipped_test_is_noticed(source):
    tree = ast.parse(source)
    assert is_off(find(tree, "test_a")[0], tree)
    running = ast.parse("@pytest.mark.slow\ndef test_a(): assert f()")
    assert not is_off(find(running, "test_a")[0], running)


def test_a_test_without_a_check_is_noticed():
    assert not can_fail(find(ast.parse("def test_a(): run()"), "test_a")[0])
    assert can_fail(find(ast.parse("def test_a():\n    with pytest.raises(E): run()"), "test_a")[0])
