"""Each behaviour of `tests.behaviours` has a test that runs and can fail, and docs/behaviours.md lists them all."""

import ast
import re

import pytest

from tests.behaviours import OTHERS, OWN, PAGE, dotted, marked, page

CHECKS = re.compile("raises|warns|assert_.*|check")  # of pytest; of numpy and MXNet; of tests.messages


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


def test_every_behaviour_has_a_test_and_no_other_is_named():
    assert {name for name, *_ in marked()} == {*OWN, *OTHERS}


def test_the_page_is_made_from_them():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.behaviours`"


@pytest.mark.parametrize("behaviour", [*OWN, *OTHERS])
def test_its_tests_run_and_can_fail(behaviour):
    for name, file, test, tree in marked():
        if name == behaviour:
            assert test.name.startswith("test_"), f"{file}: {test.name} never runs"
            assert can_fail(test), f"{file}: {test.name} asserts nothing"
            assert not is_off(test, tree), f"{file}: {test.name} is skipped"
