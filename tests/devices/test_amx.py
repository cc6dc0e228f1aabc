"""What is done about AMX: decided here with answers of a kernel that are made up, and run where the processor has it."""

import ctypes
import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mxnet as mx
import pytest
from mxnet import gluon

import mxmp
from mxmp import dtypes
from mxmp.devices import amx
from mxmp.devices.processor import Processor

ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = "avx512bw avx512_bf16 amx_tile amx_int8 amx_bf16"
VARIABLES = ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "MXMP_AMX", "MXNET_MKLDNN_ENABLED")


@pytest.fixture
def environ(monkeypatch):
    """Make a process on a processor that has AMX, with only the given ones of the variables that decide."""

    def make(request=lambda: 0, run=lambda: True, **values):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(amx, "_status", None)
        monkeypatch.setattr(amx, "read_processor", lambda: Processor("X", frozenset(FLAGS.split())))
        monkeypatch.setattr(amx, "request_permission", request)
        monkeypatch.setattr(amx, "run_operator", run)
        return dict(os.environ)

    return make


def in_c(name):
    """Return an environment variable as C code, and so oneDNN, reads it."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return getenv(name.encode())


def run_python(code, **environ):
    """Return what a program prints, in a process of its own with none of the variables but those given."""
    inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, env={**inherited, "PYTHONPATH": str(ROOT), **environ}, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def refuse():
    raise AssertionError("the kernel is asked")


@pytest.mark.parametrize("flags", ["avx512_bf16", "avx512_bf16 amx_tile amx_int8", "amx_tile amx_bf16", ""])
def test_nothing_is_asked_of_a_processor_that_lacks_what_onednn_asks_for(flags, environ, monkeypatch):
    assert amx.has_amx(Processor("X", frozenset(["avx512_bf16", "amx_tile", "amx_bf16"])))
    environ(refuse, refuse)
    monkeypatch.setattr(amx, "read_processor", lambda: Processor("X", frozenset(flags.split())))
    assert mxmp.enable_amx() == (False, "This processor has no AMX.", "")


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"DNNL_MAX_CPU_ISA": "AVX512_CORE"}, "DNNL_MAX_CPU_ISA=AVX512_CORE is set."),
        ({"DNNL_MAX_CPU_ISA": "ALL"}, "DNNL_MAX_CPU_ISA=ALL is set."),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, "ONEDNN_MAX_CPU_ISA=AVX2 is set."),
    ],
)
def test_a_variable_of_the_user_decides(variables, reason, environ):
    before = environ(refuse, refuse, **variables)
    found = mxmp.enable_amx()
    assert (found.on, found.reason) == (False, reason) and found.advice.startswith("Unset ")
    assert dict(os.environ) == before


def test_a_user_who_has_set_the_variable_gets_the_permission(environ):
    asked = []
    before = environ(lambda: asked.append(1) or 0, refuse, DNNL_MAX_CPU_ISA="AVX512_CORE_AMX")
    found = mxmp.enable_amx()
    assert found.on and asked == [1] and "is set" in found.reason and not found.advice
    assert dict(os.environ) == before


@pytest.mark.parametrize("variables", [{}, {"DNNL_MAX_CPU_ISA": ""}])
def test_onednn_sees_the_variable_while_its_first_operator_runs(variables, environ):
    seen, run_operator = [], amx.run_operator

    def run():
        seen.extend([os.environ["DNNL_MAX_CPU_ISA"], in_c("DNNL_MAX_CPU_ISA")])
        return run_operator()

    before = environ(run=run, **variables)
    assert mxmp.enable_amx() == mxmp.enable_amx() == amx.amx_status() == (True, "mxmp switched it on.", "")
    assert seen == ["AVX512_CORE_AMX", b"AVX512_CORE_AMX"]
    assert dict(os.environ) == before and in_c("DNNL_MAX_CPU_ISA") in (None, b"")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errno.EINVAL, "(EINVAL): the kernel does not know the request."),
        (errno.ENOSYS, "(ENOSYS): the kernel does not know the request."),
        (errno.EOPNOTSUPP, "(EOPNOTSUPP): the kernel has no support for AMX here."),
        (errno.ENOSPC, "(ENOSPC): a thread has a signal stack of its own that is too small for AMX."),
        (errno.EPERM, "(EPERM): the request is forbidden here."),
        (errno.EBUSY, "(EBUSY): Device or resource busy."),
        (12345, "(12345): "),
    ],
)
def test_a_refusal_changes_nothing_and_is_named(error, text, environ):
    before = environ(lambda: error, refuse)
    found = mxmp.enable_amx()
    assert not found.on and text.replace("EOPNOTSUPP", errno.errorcode[errno.EOPNOTSUPP]) in found.reason
    assert dict(os.environ) == before
    environ(lambda: error, refuse, DNNL_MAX_CPU_ISA="AVX512_CORE_AMX")
    assert mxmp.enable_amx().advice == "Unset DNNL_MAX_CPU_ISA, of which MXNet dies now."


def test_an_operator_that_fails_leaves_the_environment_as_it_was(environ):
    def fail():
        raise KeyboardInterrupt

    before = environ(run=fail)
    with pytest.raises(KeyboardInterrupt):
        mxmp.enable_amx()
    assert dict(os.environ) == before and in_c("DNNL_MAX_CPU_ISA") is None


@pytest.mark.parametrize("value", ["0", "false"])
def test_without_onednn_there_is_none(value, environ):
    environ(run=amx.run_operator, MXNET_MKLDNN_ENABLED=value)
    assert mxmp.enable_amx().advice == "Unset MXNET_MKLDNN_ENABLED."


@pytest.mark.skipif(amx.has_amx(amx.read_processor()), reason="this processor has AMX")
def test_a_kernel_refuses_where_there_is_no_amx():
    assert amx.request_permission() in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


@pytest.mark.parametrize("variable", [None, "0", "1"])
def test_importing_mxmp_changes_nothing_unless_amx_is_asked_for(variable):
    """MXNet sets variables of its own when it is imported, those of OpenMP."""
    code = """
import os, sys
before = dict(os.environ)
import mxmp
assert dict(os.environ) == before and "mxnet" not in sys.modules
asked = "mxmp.devices.amx" in sys.modules
from mxmp.devices.amx import amx_status
print(asked, amx_status().reason)
"""
    environ = {} if variable is None else {"MXMP_AMX": variable}
    has_none = not amx.has_amx(amx.read_processor())
    if has_none or variable != "1":
        asked, _, reason = run_python(code, **environ).strip().partition(" ")
        assert (asked == "True") == (variable == "1")
        assert reason == "This processor has no AMX." if has_none else "has not asked for it" in reason


def test_reports_of_bfloat16_say_that_it_is_off(monkeypatch):
    monkeypatch.setattr(amx, "amx_status", lambda: amx.AmxStatus(False, "ALL is set.", "Unset it."))
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize()
    text = "AMX is off: ALL is set. Unset it."
    for policy, lines in [("O1", 0), ("mixed_bfloat16", 1)]:
        report = mxmp.gluon.report(mxmp.gluon.convert(net, policy))
        assert report.summary.count(text) == lines == len(report.notes)
        assert "AMX" not in report.to_json() and report == replace(report, notes=())
        symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3)
        module = mxmp.module.Module(symbol, label_names=None, policy=policy)
        module.bind([("data", (2, 4))], for_training=False)
        assert module.report.notes == (text,) * lines
    for status in (amx._ABSENT, amx.AmxStatus(True, "mxmp switched it on.")):
        monkeypatch.setattr(amx, "amx_status", lambda status=status: status)
        assert amx.notes(["bfloat16"]) == ()


PLAIN = """
import mxnet as mx, numpy as np
ones = [mx.nd.amp_cast(mx.nd.ones(shape), dtype=np.dtype([("bfloat16", np.uint16)])) for shape in SHAPES]
mx.nd.Convolution(*ones, kernel=(3, 3), num_filter=64, no_bias=True).wait_to_read()
print("lives")
""".replace("SHAPES", "((1, 64, 9, 9), (64, 64, 3, 3))")


@pytest.mark.amx
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("import mxmp; print(mxmp.enable_amx().on)\n" + PLAIN, ["True", "lives"]),
        ("import mxmp, mxnet as mx, os; mxmp.enable_amx()\n" + f"pid = os.fork()\nif not pid:\n    exec({PLAIN!r})\n    os._exit(0)\nprint(os.waitpid(pid, 0)[1])", ["lives", "0"]),
        ("import faulthandler, mxmp; mxmp.enable_amx(); faulthandler.enable()\n" + PLAIN, ["lives"]),
        ("import mxmp, subprocess, sys; mxmp.enable_amx(); " + f"subprocess.run([sys.executable, '-c', {'import mxmp' + PLAIN!r}], check=True)", ["lives"]),
    ],
    ids=["on", "fork", "faulthandler", "child"],
)  # fmt: skip
def test_programs_live(program, printed):
    assert run_python(program).split() == printed


@pytest.mark.amx
@pytest.mark.parametrize(("environ", "on"), [({"MXMP_AMX": "1"}, "True"), ({"MXMP_AMX": "0"}, "False")])
def test_the_environment_may_ask_for_it(environ, on):
    code = "import mxmp\nfrom mxmp.devices.amx import amx_status\nprint(amx_status().on)"
    assert run_python(code + PLAIN, **environ).split() == [on, "lives"]


@pytest.mark.amx
def test_a_bfloat16_convolution_agrees_with_float32s():
    data = mx.nd.random.normal(shape=(2, 64, 14, 14))
    weight = mx.nd.random.normal(shape=(64, 64, 3, 3))
    low, low_weight = (mx.nd.amp_cast(each, dtype=dtypes.to_numpy("bfloat16")) for each in (data, weight))
    found, expected = (
        mx.nd.amp_cast(mx.nd.Convolution(*each, kernel=(3, 3), num_filter=64, no_bias=True), dtype="float32")
        for each in ((low, low_weight), [mx.nd.amp_cast(each, dtype="float32") for each in (low, low_weight)])
    )
    error = mx.nd.abs(found - expected).max() / mx.nd.abs(expected).max()
    assert error.asscalar() < 2**-8  # the result alone is rounded; sums are float32
