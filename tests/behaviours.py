"""The behaviours that tests hold: those of mxmp, and those that the test suites of other libraries assert.

A test names with ``@pytest.mark.behaviour`` those that it holds. docs/behaviours.md is made from them::

    python -m tests.behaviours
"""

import ast
import functools
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "behaviours.md"

OWN = {  # number: area, behaviour
    1: ("graph", "A network comes back from mxmp's graph as it was: attributes, bodies of loops, names of any characters."),
    2: ("graph", "A file is refused if a node reads a node that is not there. The error names the node."),
    3: ("rules", "Under O1 products run in float16, the softmax behind them in float32."),
    4: ("rules", "An index is never rounded: 2049, which float16 has not, finds row 2049."),
    5: ("rules", "An operator whose constant is infinite or 0 in float16 stays float32."),
    6: ("rules", "A sum of up to 1024 terms may run in float16; of 1025 it stays float32."),
    7: ("rules", "BatchNorm keeps its parameters and statistics in float32, under O2 too."),
    8: ("rules", "Branches in float64 and integers are left alone."),
    9: ("policy", "A policy is read from the text that it prints."),
    10: ("policy", "An override by name beats one by operator."),
    11: ("policy", "A pattern that matches no node is refused; the error has the nearest names."),
    12: ("passes", "A tainted node stays float32: a sum behind an exponential would overflow."),
    13: ("passes", "Two readers share one cast."),
    14: ("passes", "Casts stand where the fewest bytes are moved: no other placement of a random network is cheaper."),
    15: ("passes", "ResNet-50 has two casts of activations under O2: of the image and of the logits."),
    16: ("passes", "A wide value, such as an input, is narrowed only for a layer, and never to save bytes."),
    17: ("passes", "Outputs keep their names and are float32."),
    18: ("passes", "The layers in a loop run in float16; its state stays float32."),
    19: ("passes", "The network's own casts still round after a conversion, and are there after the way back."),
    20: ("passes", "A float16 product on a CPU has numpy's bits: operands and result are rounded, the sum is float32's."),
    21: ("passes", "For inference BatchNorm is folded into the layer before it, and Dropout is gone; the result is the same."),
    22: ("symbol", "Every output of a random network lies within the error bound that follows from its casts."),
    23: ("symbol", "Converting twice is converting once."),
    24: ("symbol", "Converting to float32 gives the network back, node by node."),
    25: ("symbol", "A conversion leaves the caller's symbol, dicts and arrays as they were."),
    26: ("symbol", "A weight that also a float32 operator reads stays float32, and is cast once."),
    27: ("symbol", "A weight beyond float16's range is clamped and listed, not stored as inf."),
    28: ("symbol", "A weight is rounded to the nearest bfloat16, ties to even, not truncated."),
    29: ("files", "Plain MXNet loads and runs a converted checkpoint."),
    30: ("files", "A saved bfloat16 model has all its casts, which `Symbol.save` leaves out."),
    31: ("files", "A disk that is full leaves the earlier files whole, and no others."),
    32: ("files", "A file of parameters that is cut off, or longer than it says, is refused by its name."),
    33: ("files", "`kill -9` in the middle of a save leaves the older file or the newer, never a part."),
    34: ("onnx", "A converted model computes the same in onnxruntime as in MXNet."),
    35: ("devices", "`check_devices` says that float16 on a CPU is emulated."),
    36: ("launch", "A worker that fails ends the others, and its exit code is passed on."),
    37: ("launch", "Each line of a job is printed behind the name of its process."),
    38: ("gluon", "`convert` changes the net in place: the same object with the same parameters, float32 outside, low within."),
    39: ("gluon", "`restore` gives values and outputs of the float32 net back bit for bit."),
    40: ("gluon", '`precision("float32")` holds for the calls in its block, and for no other.'),
    41: ("masters", "Updates too small for float16 add up in float32 masters, on every context."),
    42: ("masters", "Saved parameters are the float32 masters."),
    43: ("scaling", "The scale grows after `growth_interval` finite steps, not one earlier or later, and backs off at once."),
    44: ("scaling", "At the floor the error names the first gradient that is not finite."),
    45: ("scaling", "A loss that is NaN itself is an error, and moves neither weights nor scale."),
    46: ("trainer", "A skipped step keeps weights, momentum, counts and schedule."),
    47: ("trainer", "One bad number in one gradient on one context skips the step on all."),
    48: ("trainer", "Gradients are clipped by the norm of the true ones, at any scale."),
    49: ("trainer", "A run that is saved and resumed at every step goes on bit for bit."),
    50: ("module", "A loss scale leaves the forward pass exact: in float32 outputs and updates are the same bits."),
    51: ("module", "A module goes on from its checkpoint bit for bit, its scale included."),
    52: ("module", "A manifest refuses files that do not fit: of two saves, with one size."),
    53: ("amp", "`amp.disable` takes back the effect of `amp.init`."),
    54: ("amp", "Each loss of Apex has a scale of its own: an overflow of one moves no other."),
    55: ("optimizer", "Keras' optimizer skips a NaN, halves its scale and does not count the step."),
    56: ("diagnose", "`explain` names the operator that leaves float16's range, and finds nothing in a healthy step."),
    57: ("diagnose", "`compare` leaves the net as it was."),
    58: ("tune", "A comparison of speeds changes nothing of the network, and its `fastest` is a policy to convert with."),
    59: ("cli", "`mxmp convert` writes the bytes that `convert_checkpoint` writes."),
    60: ("cli", "An error is one line on stderr and exit code 1."),
}

OTHERS = {
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
    "gradients changed before the step": "the step uses gradients that were changed after unscaling",
    "a step's answer": "a step returns whether it was skipped",
    "an overflow on one context": "an inf on one context or worker makes all of them skip",
    "bits of casts by hand": "an operator gives the dtype and the bits of operands cast by hand",
    "refused by name": "an operator that cannot run in low precision is refused by name",
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
    "a policy on each device": "each device is named with its answer to a policy",
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

HEAD = """# Behaviours

A user can check each of these behaviours, and a test holds each. A change that breaks a line here changes mxmp for its
users. Say so, and change the line with it.

This page is made by `python -m tests.behaviours`, from `tests/behaviours.py` and the tests that are marked.

## Of mxmp

These tests use public names only, so that they hold after a redesign.

| number | area | behaviour | test |
|---|---|---|---|
"""

OF_OTHERS = """
## Of other libraries

The test suites of torch, Apex, Keras, DeepSpeed, jmp, optax and fastai assert these behaviours. mxmp has tests of its
own for them.

| behaviour | it means | tests |
|---|---|---|
"""


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
    for file in sorted(TESTS.rglob("test_*.py")):
        source = file.read_text(encoding="utf-8")
        if "mark.behaviour" in source:
            tree = ast.parse(source)
            functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
            found += [(name, file, test, tree) for test in functions for name in behaviours_of(test)]
    return found


def tests_of(behaviour):
    """Return the tests of a behaviour, as pytest is given them."""
    tests = [(file, test) for name, file, test, _ in marked() if name == behaviour]
    return [f"{file.relative_to(TESTS.parent).as_posix()}::{test.name}" for file, test in tests]


def page():
    """Return the text of docs/behaviours.md."""
    own = [
        f"| {number} | {area} | {text} | {listed(tests_of(number))} |\n" for number, (area, text) in OWN.items()
    ]
    others = [f"| {name} | {text} | {listed(tests_of(name))} |\n" for name, text in OTHERS.items()]
    return "".join([HEAD, *own, OF_OTHERS, *others])


def listed(tests):
    return ", ".join(f"`{test}`" for test in tests)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE}")
