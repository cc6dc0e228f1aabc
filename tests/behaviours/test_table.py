"""The table of behaviours is whole, and every test that it names is there and can fail."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.behaviours.misuse import MISUSE
from tests.behaviours.table import BEHAVIOURS

TESTS = Path(__file__).resolve().parent.parent
ROWS = {**{str(number): row for number, row in BEHAVIOURS.items()}, **MISUSE}
CHECKS = re.compile("raises|warns|assert_.*")  # of pytest; of numpy and MXNet


@functools.lru_cache(maxsize=None)
def parse(file):
    return ast.parse((TESTS / file).read_text(encoding="utf-8"))


def strings(*trees):
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [node.value for node in nodes if isinstance(node.value, str)]


def parameters(test, tree):
    """Return the texts in a test's decorators, and in the tables and functions that these are made of."""
    defined = {node.name: [node] for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in (node for node in tree.body if isinstance(node, ast.Assign)):
        defined.update({getattr(target, "id", ""): [node] for target in node.targets})
    waiting, seen = list(test.decorator_list), []
    while waiting:
        seen.append(waiting.pop())
        for name in (node.id for node in ast.walk(seen[-1]) if isinstance(node, ast.Name)):
            waiting += defined.pop(name, [])
    return strings(*seen)


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
    """Return whether a test asserts something itself."""
    return any(
        isinstance(node, ast.Assert) or isinstance(node, ast.Call) and CHECKS.fullmatch(dotted(node)[-1])
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
        found = parameters(tests[0], tree)
        assert not text or any(text in each for each in found), f"{name} has no parameter {text!r}"


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


@pytest.mark.parametrize("body", ["run()", "check_devices('O1')", "assertion()", "raises_nothing()"])
def test_a_test_without_a_check_is_noticed(body):
    assert not can_fail(find(ast.parse(f"def test_a(): {body}"), "test_a")[0])


@pytest.mark.parametrize("body", ["assert run()", "np.testing.assert_array_equal(a, b)", "pytest.raises(E, run)"])
def test_a_check_is_seen(body):
    assert can_fail(find(ast.parse(f"def test_a(): {body}"), "test_a")[0])


def test_parameters_are_those_of_the_test_itself():
    source = """def cases(): return {"in a function": 1}
CASES = {"in a table": 1, **cases()}
OTHERS = {"of another test": 1}
@pytest.mark.parametrize("case", CASES.values(), ids=["in a decorator"])
def test_a(case): assert run("in its body", case)"""
    tree = ast.parse(source)
    assert {*parameters(find(tree, "test_a")[0], tree)} == {"case", "in a decorator", "in a function", "in a table"}
