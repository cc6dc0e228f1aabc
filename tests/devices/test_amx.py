"""What is done about AMX: decided here with answers of a kernel that are made up, and run where the processor has it."""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mxnet as mx
import pytest
from mxnet import gluon

import mxmp
from mxmp import compat, dtypes
from mxmp.devices import amx
from mxmp.devices.processor import Processor

ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = "avx512bw avx512_bf16 amx_tile amx_int8 amx_bf16"
VARIABLES = ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "MXMP_AMX", "MXNET_MKLDNN_ENABLED")

# Makes this process's processor and kernel ones that have AMX, before MXNet is imported; oneDNN, which asks the
# processor itself, takes what there is. So the kernel is asked too: with AMX and without permission MXNet dies.
MADE_UP = f"""
import json, os, sys
import mxmp
from mxmp.devices import after_import, amx
from mxmp.devices.processor import Processor
asked = []
amx.read_processor = lambda: Processor("Xeon", frozenset({FLAGS!r}.split()))
ask = amx.request_permission
amx.request_permission = lambda: asked.append(ask()) or 0
sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, after_import.Finder)]  # of a real one
"""
REPORT = """
import subprocess
child = "import os; print(os.environ.get('DNNL_MAX_CPU_ISA'))"
inherited = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout.strip()
found = amx.amx_status()
waiting = [each for each in sys.meta_path if isinstance(each, after_import.Finder)]
print(json.dumps([found.on, found.reason, len(asked), os.environ.get("DNNL_MAX_CPU_ISA"), inherited, len(waiting)]))
"""


@pytest.fixture
def environ(monkeypatch):
    """Set the variables that decide, and no others of them."""

    def set_all(**values):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        return dict(os.environ)

    set_all()
    return set_all


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


@pytest.mark.parametrize(
    ("flags", "has"),
    [
        (FLAGS, True),
        ("avx512_bf16 amx_tile amx_bf16", True),
        ("avx512_bf16", False),
        ("avx512_bf16 amx_tile amx_int8", False),
        ("amx_tile amx_bf16", False),
        ("", False),
    ],
)
def test_has_amx_needs_what_onednn_asks_for(flags, has):
    assert amx.has_amx(Processor("X", frozenset(flags.split()))) is has


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"MXMP_AMX": "0"}, "MXMP_AMX=0 is set."),
        ({"MXMP_AMX": "0", "DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX"}, "MXMP_AMX=0 is set."),
        ({"DNNL_MAX_CPU_ISA": "AVX512_CORE"}, "DNNL_MAX_CPU_ISA=AVX512_CORE is set."),
        ({"DNNL_MAX_CPU_ISA": "ALL"}, "DNNL_MAX_CPU_ISA=ALL is set."),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, "ONEDNN_MAX_CPU_ISA=AVX2 is set."),
    ],
)
def test_the_user_decides(variables, reason, environ):
    before = environ(**variables)
    found = amx.switch_on(refuse, refuse)
    assert (found.on, found.reason) == (False, reason) and found.advice.startswith("Unset ")
    assert dict(os.environ) == before


def test_a_user_who_asks_for_amx_gets_the_permission(environ):
    before = environ(DNNL_MAX_CPU_ISA="AVX512_CORE_AMX")
    asked = []
    found = amx.switch_on(lambda: asked.append(1) or 0, refuse)
    assert found.on and asked == [1] and "is set" in found.reason and not found.advice
    assert dict(os.environ) == before


@pytest.mark.parametrize("variables", [{}, {"MXMP_AMX": "1"}, {"MXMP_AMX": ""}, {"DNNL_MAX_CPU_ISA": ""}])
def test_onednn_sees_the_variable_while_its_first_operator_runs(variables, environ):
    before, seen = environ(**variables), []

    def run():
        seen.extend([os.environ["DNNL_MAX_CPU_ISA"], in_c("DNNL_MAX_CPU_ISA")])
        return amx.run_operator()

    assert amx.switch_on(lambda: 0, run) == (True, "mxmp switched it on.", "")
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
    before = environ()
    found = amx.switch_on(lambda: error, refuse)
    assert not found.on and text.replace("EOPNOTSUPP", errno.errorcode[errno.EOPNOTSUPP]) in found.reason
    assert dict(os.environ) == before


def test_a_refusal_of_what_the_user_asked_for_is_dangerous(environ):
    environ(DNNL_MAX_CPU_ISA="AVX512_CORE_AMX")
    found = amx.switch_on(lambda: errno.EPERM, refuse)
    assert not found.on and "MXNet dies" in found.reason and found.advice == "Unset DNNL_MAX_CPU_ISA."


def test_an_operator_that_fails_leaves_the_environment_as_it_was(environ):
    before = environ()

    def fail():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        amx.switch_on(lambda: 0, fail)
    assert dict(os.environ) == before and in_c("DNNL_MAX_CPU_ISA") is None


@pytest.mark.parametrize("value", ["0", "false"])
def test_without_onednn_there_is_none(value, environ):
    environ(MXNET_MKLDNN_ENABLED=value)
    found = amx.switch_on(lambda: 0, amx.run_operator)
    assert not found.on and found.advice == "Unset MXNET_MKLDNN_ENABLED."


@pytest.mark.skipif(amx.has_amx(amx.read_processor()), reason="this processor has AMX")
def test_a_kernel_refuses_where_there_is_no_amx():
    assert amx.request_permission() in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


@pytest.mark.skipif(amx.has_amx(amx.read_processor()), reason="this processor has AMX")
def test_on_other_processors_nothing_happens():
    """MXNet sets variables of its own when it is imported, those of OpenMP."""
    code = """
import os, sys
before, finders = dict(os.environ), set(map(type, sys.meta_path))
import mxmp
from mxmp import compat
from mxmp.devices import amx
assert set(map(type, sys.meta_path)) - finders <= {compat.Finder} and dict(os.environ) == before
assert not {"mxnet", "ctypes", "mxmp.devices.after_import"} & set(sys.modules)
print(*amx.amx_status())
"""
    assert run_python(code).strip() == "False This processor has no AMX."


IN_A_THREAD = "t = threading.Thread(target=__import__, args=('mxnet',)); t.start(); t.join()"


@pytest.mark.parametrize(
    "program",
    [
        "amx.install(); assert not amx.amx_status().on; import mxnet",
        pytest.param("amx.install(); from mxnet import gluon", marks=pytest.mark.slow),
        pytest.param("amx.install(); import mxmp.gluon", marks=pytest.mark.slow),
        pytest.param("import mxnet; amx.install()", marks=pytest.mark.slow),
        pytest.param(f"amx.install(); import threading; {IN_A_THREAD}", marks=pytest.mark.slow),
    ],
    ids=["mxnet", "a part of mxnet", "a part of mxmp", "imported before", "in a thread"],
)
def test_whoever_imports_mxnet_it_is_switched_on(program):
    """In a process whose processor and kernel are made up; what it took is put in the place of oneDNN's own code.

    The process and its children find the environment as it was.
    """
    code = f"""{MADE_UP}
{program}
from mxmp.devices import generated_code
generated_code.uses_amx = lambda: True
{REPORT}"""
    assert json.loads(run_python(code)) == [True, "mxmp switched it on.", 1, None, "None", 0]


@pytest.mark.slow
def test_the_variable_is_read_when_mxnet_is_imported():
    """It may be set between the imports of mxmp and of MXNet."""
    code = f"{MADE_UP}\namx.install()\nos.environ['DNNL_MAX_CPU_ISA'] = 'AVX2'\nimport mxnet"
    assert json.loads(run_python(code + REPORT)) == [False, "DNNL_MAX_CPU_ISA=AVX2 is set.", 0, "AVX2", "AVX2", 0]


@pytest.mark.slow
def test_too_late_is_seen_in_the_code_that_onednn_generates():
    """Where there is no AMX, none of its instructions are generated."""
    code = f"{MADE_UP}\nimport mxnet\namx.install()"
    on, reason, asked, variable, *_ = json.loads(run_python(code + REPORT).splitlines()[-1])
    if not amx.has_amx(amx.read_processor()):
        assert not on and reason.startswith("MXNet had run an operator before mxmp was imported")
    assert asked == 1 and variable is None


def test_it_is_logged_once(environ, caplog, monkeypatch):
    monkeypatch.setattr(amx, "_status", None)
    monkeypatch.setattr(amx, "_to_verify", False)
    monkeypatch.setattr(amx, "read_processor", lambda: Processor("X", frozenset(FLAGS.split())))
    monkeypatch.setattr(amx, "request_permission", lambda: 0)
    monkeypatch.setattr("mxmp.devices.generated_code.uses_amx", lambda: True)
    with caplog.at_level(logging.INFO, logger=amx.__name__):
        amx.install()
        assert amx.amx_status().on and amx.amx_status().on
    assert [record.getMessage() for record in caplog.records] == ["AMX is on: mxmp switched it on."]


def test_a_failure_does_not_reach_who_imports_mxnet(environ, monkeypatch):
    def fail():
        raise RuntimeError("no memory")

    monkeypatch.setattr(amx, "_status", None)
    monkeypatch.setattr(amx, "_to_verify", False)
    monkeypatch.setattr(amx, "read_processor", lambda: Processor("X", frozenset(FLAGS.split())))
    monkeypatch.setattr(amx, "request_permission", fail)
    amx.install()
    assert amx.amx_status() == amx.AmxStatus(False, "Switching it on failed: RuntimeError: no memory")


@pytest.fixture
def refused(monkeypatch):
    monkeypatch.setattr(amx, "amx_status", lambda: amx.AmxStatus(False, "MXMP_AMX=0 is set.", "Unset MXMP_AMX."))


def test_reports_of_bfloat16_say_that_it_is_off(refused):
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize()
    text = "AMX is off: MXMP_AMX=0 is set. Unset MXMP_AMX."
    for policy, lines in [("O1", 0), ("mixed_bfloat16", 1)]:
        report = mxmp.gluon.report(mxmp.gluon.convert(net, policy))
        assert report.summary.count(text) == lines == len(report.notes)
        assert "AMX" not in report.to_json() and report == replace(report, notes=())


def test_the_report_of_a_module_says_so_too(refused):
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3)
    notes = []
    for policy in ("O0", "mixed_bfloat16"):
        module = mxmp.module.Module(symbol, label_names=None, policy=policy)
        module.bind([("data", (2, 4))], for_training=False)
        notes.append(module.report.notes)
    assert notes == [(), ("AMX is off: MXMP_AMX=0 is set. Unset MXMP_AMX.",)]


@pytest.mark.parametrize("status", [amx._ABSENT, amx._ON], ids=["absent", "on"])
def test_there_is_nothing_to_say_where_nothing_can_be_done(status, monkeypatch):
    monkeypatch.setattr(amx, "amx_status", lambda: status)
    assert amx.notes(["bfloat16"]) == ()


PLAIN = """
import mxnet as mx, numpy as np
ones = [mx.nd.amp_cast(mx.nd.ones(shape), dtype=np.dtype([("bfloat16", np.uint16)])) for shape in SHAPES]
mx.nd.Convolution(*ones, kernel=(3, 3), num_filter=64, no_bias=True).wait_to_read()
print("lives")
""".replace("SHAPES", "((1, 64, 9, 9), (64, 64, 3, 3))")
STATUS = "\nimport mxmp\nfrom mxmp.devices import amx\nprint(amx.amx_status().on)"
USED = "\nfrom mxmp.devices.generated_code import uses_amx\nprint(uses_amx())"


@pytest.mark.amx
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("import mxmp\n" + PLAIN + USED, ["lives", "True"]),
        ("import mxmp, mxnet as mx, os\n" + f"pid = os.fork()\nif not pid:\n    exec({PLAIN!r})\n    os._exit(0)\nprint(os.waitpid(pid, 0)[1])", ["lives", "0"]),
        ("import faulthandler, mxmp, mxnet; faulthandler.enable()\n" + PLAIN, ["lives"]),
    ],
    ids=["on", "fork", "faulthandler"],
)  # fmt: skip
def test_programs_live(program, printed):
    assert run_python(program).split() == printed


@pytest.mark.amx
@pytest.mark.skipif(compat.needed(), reason="MXNet does not import before mxmp with this numpy and Python")
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("import mxnet" + STATUS + USED, ["True", "True"]),
        ("import mxnet as mx; mx.nd.FullyConnected(*[mx.nd.ones((1, 1))] * 2, num_hidden=1, no_bias=True).wait_to_read()" + STATUS, ["False"]),
        ("import mxmp\n" + f"import mxnet, subprocess, sys; subprocess.run([sys.executable, '-c', {PLAIN!r}], check=True)", ["lives"]),
    ],
    ids=["imported before", "too late", "child"],
)  # fmt: skip
def test_programs_of_plain_mxnet_live(program, printed):
    assert run_python(program).split() == printed


@pytest.mark.amx
@pytest.mark.parametrize(
    ("environ", "on"),
    [({"MXMP_AMX": "0"}, "False"), ({"DNNL_MAX_CPU_ISA": "ALL"}, "False"), ({"DNNL_MAX_CPU_ISA": amx.VALUE}, "True")],
)
def test_a_variable_decides_what_onednn_takes(environ, on):
    assert run_python("import mxmp\n" + PLAIN + STATUS + USED, **environ).split() == ["lives", on, on]


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
