"""What the test suites of other libraries assert about loss scaling and casting has tests here that can fail.

A test names with ``@pytest.mark.behaviour`` what it holds. All of the behaviours mean something on MXNet.
"""

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
CHECKS = re.compile("raises|warns|assert_.*")  # of pytest; of numpy and MXNet

BEHAVIOURS = {
    # torch: GradScaler and autocast
    "any bad value": "unscaling finds an inf or NaN in any tensor, views included",
    "sparse gradients": "sparse gradients are checked, with duplicates that overflow when they are summed",
    "growth and back-off": "the scale grows after N steps and backs off; a back-off resets the tracker",
    "nested losses": "scaling a loss keeps nested containers",
    "a state before and after use": "a state loads before and after the first use",
    "float32's training": "training equals float32's while the scaler is pickled at every iteration",
    "an exact scale": "the scale is exactly init * growth**u * backoff**s; without scaling the loop is as it was",
    "a scale that stays finite": "the scale never overflows",
    "clipping of true gradients": "clipping at any scale is clipping of the true gradients",
    "clipping an overflow": "clipping after unscaling gradients with an inf still skips",
    "gradient penalty": "a gradient penalty is scaled right",
    "accumulation": "gradients accumulate at one scale, are unscaled once, and equal the sum",
    "two models": "two models, two optimizers, two losses: one skips, the other steps, a shared scale backs off once",
    "gradients changed before the step": "gradients changed between unscaling and the step are what the step uses",
    "a step's answer": "a step returns whether it was skipped",
    "an overflow on one context": "an inf on one context or worker makes all of them skip",
    "bits of casts by hand": "an operator gives the dtype and the bits of operands cast by hand",
    "refused by name": "what cannot run in low precision is refused by name",
    "float64 and integers": "float64 and integers are left alone",
    "custom operators": "custom operators read and give float32, unless the user's own casts give them another dtype",
    "recurrent layers": "recurrent layers of every kind and layout",
    "inference and training apart": "casts made under inference do not leak into training, nor old weights into inference",
    "one cast of a weight": "a weight is cast once per step, however often it is read",
    # Apex
    "dtype by class": "the class of an operator decides the dtype of its output; a gradient has the dtype of its input",
    "the widest dtype": "operands of several dtypes are promoted to the widest",
    "train, eval, train": "train, eval, train: the gradients are right",
    "a resumed run": "a resumed run goes on exactly, at every level",
    "saved parameters": "saved parameters are float32 and still train",
    "a scale per loss": "scales of several losses are independent",
    "an overflow of one loss": "an inf by dtype, iteration and loss costs that loss that step",
    "added parameters": "parameters added in mid-training are trained like the others",
    "hysteresis and floor": "hysteresis under fuzz, and never below the floor",
    # Keras
    "an infinite step": "an infinite step changes nothing but the scale; down, up, and the count of iterations",
    "wrong optimizer arguments": "wrong optimizer arguments are named in the error",
    "forgotten calls": "forgetting to scale or to unscale is an error that names the call",
    "clipping in Keras": "an inf that is clipped still skips",
    "a NaN on one replica": "a NaN on one replica only makes all skip, and is named",
    "wrapping twice": "wrapping twice is refused",
    "nested policies": "policies nest",
    "a policy on each device": "what each device makes of a policy is said by its name",
    # DeepSpeed, jmp, optax and fastai
    "a custom minimum": "a custom minimum is kept, through a file too",
    "overflows in a row": "all steps overflow, and some do",
    "counts of skips": "skips are counted in a row and in all",
    "labels and indices": "targets, labels and indices are untouched",
    "one list per operator": "every operator stands in exactly one list",
    # what passes silently in torch, and is refused here
    "an update between two steps": "of a shared scale: refused between backward and step",
    "a scale that changes while accumulating": "refused; the window keeps its scale",
    "backward after unscale": "refused by name",
    "unscale twice": "refused",
    "an interval below the tracker": "refused",
    "a scale that is none": "refused",
    "a wrong back-off": "refused",
    "no growth interval": "refused",
    "a NaN in a state": "refused, and nothing is loaded",
}


def dotted(node):
    """Return the names that a decorator or a called function is made of: ``pytest.mark.skip``."""
    if isinstance(node, ast.Call):
        return dotted(node.func)
    return [*dotted(node.value), node.attr] if isinstance(node, ast.Attribute) else [getattr(node, "id", "")]


def behaviours_of(test):
    """Return the behaviours that a function is marked with."""
    marks = [mark for mark in test.decorator_list if dotted(mark) == ["pytest", "mark", "behaviour"]]
    return [ast.literal_eval(argument) for mark in marks for argument in mark.args]


@functools.lru_cache(maxsize=None)
def marked():
    """Return (behaviour, file, test, its module) of every mark."""
    found = []
    for file in sorted(TESTS.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        if "mark.behaviour" in source:
            tree = ast.parse(source)
            functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
            found += [(name, file, test, tree) for test in functions for name in behaviours_of(test)]
    return found


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
    assert {name for name, *_ in marked()} == set(BEHAVIOURS)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_its_tests_run_and_can_fail(behaviour):
    for name, file, test, tree in marked():
        if name == behaviour:
            assert file.name.startswith("test_") and test.name.startswith("test_"), f"{file}: {test.name} never runs"
            assert can_fail(test), f"{file}: {test.name} asserts nothing"
            assert not is_off(test, tree), f"{file}: {test.name} is skipped"


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
    assert is_off(tree.body[-1], tree)
    running = ast.parse("@pytest.mark.slow\ndef test_a(): assert f()")
    assert not is_off(running.body[-1], running)


@pytest.mark.parametrize("body", ["run()", "check_devices('O1')", "assertion()", "raises_nothing()"])
def test_a_test_without_a_check_is_noticed(body):
    assert not can_fail(ast.parse(f"def test_a(): {body}"))


@pytest.mark.parametrize("body", ["assert run()", "np.testing.assert_array_equal(a, b)", "pytest.raises(E, run)"])
def test_a_check_is_seen(body):
    assert can_fail(ast.parse(f"def test_a(): {body}"))
