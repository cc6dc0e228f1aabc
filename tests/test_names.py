"""What people guess: a name of another library, a public name of another module, a slip of the pen."""

import importlib
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import mxmp
from tests.test_public_api import LISTED, LISTED_MODULES, is_public, names_in

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "guides" / "coming_from" / "names.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| `([^`]+)` \|$", re.MULTILINE)
GUESSES = {answer: re.findall(r"\w+", guesses) for guesses, answer in ROW.findall(PAGE)}
"""By the name to use instead, as the page lists them."""


def test_dir_shows_what_is_public():
    listed = {module: names_in(module, LISTED | LISTED_MODULES) for module in ("mxmp", *LISTED_MODULES)}
    shown = {module: [name for name in dir(importlib.import_module(module)) if name[:2] != "__"] for module in listed}
    assert shown == listed and "__version__" in dir(mxmp)


MESSAGES = {
    ("mxmp", "convert"): "; use mxmp.gluon.convert or mxmp.symbol.convert_model",
    ("mxmp", "Trainer"): "; use mxmp.gluon.Trainer",
    ("mxmp", "autocast"): '; use mxmp.gluon.convert(net, "mixed_float16")',
    ("mxmp", "set_global_policy"): '; use mxmp.gluon.convert(net, "mixed_float16")',
    ("mxmp.amp", "GradScaler"): '; use mxmp.gluon.Trainer(net, ..., loss_scale="dynamic")',
    ("mxmp.amp", "grad_scaler"): '; use mxmp.gluon.Trainer(net, ..., loss_scale="dynamic")',
    ("mxmp.amp", "GradScalar"): '; use mxmp.gluon.Trainer(net, ..., loss_scale="dynamic")',
    ("mxmp.amp", "list_fp16_ops"): "; use mxmp.amp.list_lp16_ops",
    ("mxmp.gluon", "Policy"): "; use mxmp.Policy",
    ("mxmp.gluon", "nn"): "; use mxnet.gluon",
    ("mxmp.symbol", "convert_modle"): "; use mxmp.symbol.convert_model or mxmp.amp.convert_model",
    ("mxmp.gluon", "module"): "; use mxmp.module or mxmp.module.Module",
    ("mxmp.optimizer", "Adam"): "; use mxmp.optimizer.LossScaleOptimizer(mx.optimizer.SGD())",
    ("mxmp.loss_scale", "LossScaler"): "; use mxmp.loss_scale.DynamicLossScale",
    ("mxmp", "ConvertError"): "; use mxmp.errors.ConvertError",
    ("mxmp", "float16"): '; use "float16"',
    ("mxmp", "gloun"): "; the nearest are gluon, launch, tune",
    ("mxmp.module", "qqq"): "; expected one of BucketingModule, Module",
    ("mxmp.gluon", "__wrapped__"): "",
}


def message_of(module, name):
    """Return what Python says of a name that a module lacks; it adds no name that is spelt alike, as from 3.10 on."""
    with pytest.raises(AttributeError) as caught:
        getattr(importlib.import_module(module), name)
    assert "Did you mean" not in "".join(traceback.format_exception_only(caught.type, caught.value))
    return str(caught.value)


@pytest.mark.parametrize("module, name", MESSAGES)
def test_a_name_that_is_missing_is_answered_by_the_one_to_use(module, name):
    """An import of it too."""
    assert message_of(module, name) == f"module {module!r} has no attribute {name!r}{MESSAGES[module, name]}"
    with pytest.raises(ImportError) as caught:
        exec(f"from {module} import {name}")
    assert str(caught.value).partition(" (/")[0] == f"cannot import name {name!r} from {module!r}{MESSAGES[module, name]}"


@pytest.mark.parametrize("answer", GUESSES)
def test_a_guess_is_answered_at_the_top_by_public_names(answer):
    path = re.match(r"mxmp[\w.]+", answer)
    others = ('"float16"', '"bfloat16"', '"float32"', "mxnet.gluon", "mxnet.contrib.quantization")
    assert is_public(path.group()) if path else answer in others
    for guess in GUESSES[answer]:
        assert answer in message_of("mxmp", guess).partition("; use ")[2].split(" or ")


def test_asking_for_a_guess_is_no_import():
    assert not hasattr(mxmp, "convert") and getattr(mxmp.amp, "GradScaler", None) is None
    assert __import__("mxmp", fromlist=["convert"]) is mxmp


def test_the_page_shows_what_python_says():
    said = MESSAGES["mxmp.amp", "GradScaler"]
    assert f">>> from mxmp.amp import GradScaler\nImportError: cannot import name 'GradScaler' from 'mxmp.amp'{said}\n" in PAGE


def test_a_guess_at_the_top_imports_no_mxnet():
    loaded = "print('mxnet' in sys.modules, 'mxmp.names' in sys.modules)"
    code = f"import sys, mxmp; dir(mxmp); {loaded}; hasattr(mxmp, 'GradScaler'); {loaded}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\nFalse True\n"
