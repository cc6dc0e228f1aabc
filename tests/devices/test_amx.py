"""What is done about AMX: decided here with answers of a kernel that are made up, and run where the processor has it."""

import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import pytest

import mxmp
from mxmp.devices import amx
from mxmp.diagnose import amx_status
from tests.processors import AMD, AMX, EMULATED, INTEL, NO_BFLOAT16, UNKNOWN, processor_of, read_cpuinfo

ROOT = Path(__file__).resolve().parent.parent.parent
VARIABLES = ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "MXMP_AMX", "MXNET_MKLDNN_ENABLED")
SWITCHED_ON = (True, "mxmp switched it on.", "")
XEON = processor_of(AMX)


@pytest.fixture
def environ(monkeypatch):
    """Make a process on a processor that has AMX, with only the given ones of the variables that decide."""

    def make(request=lambda: 0, run=lambda: None, uses=lambda: True, processor=XEON, **values):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(amx, "_status", None)
        monkeypatch.setattr(amx, "read_cpuinfo", lambda: processor)
        monkeypatch.setattr(amx, "request_permission", request)
        monkeypatch.setattr(amx, "run_operator", run)
        monkeypatch.setattr(amx, "uses_amx", uses)
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


@pytest.mark.parametrize("kind", [NO_BFLOAT16, EMULATED, AMD, INTEL, UNKNOWN], ids=lambda kind: kind.name)
def test_nothing_is_asked_of_a_processor_without_amx(kind, environ):
    environ(refuse, refuse, refuse, processor_of(kind))
    assert mxmp.enable_amx() == amx_status() == (False, "This processor has no AMX.", "")


@pytest.mark.parametrize("value", ["0", "false", "off"])
def test_a_variable_keeps_it_off_until_it_is_asked_for_by_name(value, environ):
    environ(refuse, refuse, refuse, MXMP_AMX=value)
    assert amx_status().note == (
        f"AMX is off: MXMP_AMX={value} is set. Unset MXMP_AMX, or call mxmp.enable_amx() before the first operator of MXNet."
    )
    environ(refuse, refuse, refuse, MXMP_AMX=value, DNNL_MAX_CPU_ISA="AVX512_CORE")
    assert amx_status().advice == "Unset MXMP_AMX and DNNL_MAX_CPU_ISA."
    environ(MXMP_AMX=value)
    assert mxmp.enable_amx() == amx_status() == SWITCHED_ON
    environ(uses=lambda: False, MXMP_AMX=value)
    assert mxmp.enable_amx().advice == "Call mxmp.enable_amx() before the first operator of MXNet."


def test_an_operator_that_fails_at_import_leaves_the_import_alone(environ, caplog):
    def fail():
        raise mx.MXNetError("no memory")

    before = environ(run=fail)
    amx.switch_on_at_import()
    assert "AMX stays off, because an operator of MXNet failed: no memory" in caplog.text and dict(os.environ) == before


def test_onednn_that_multiplies_without_amx_was_switched_too_late(environ):
    asked = []
    environ(uses=lambda: bool(asked.append(1)))
    amx.switch_on()
    assert not asked  # a product is a first primitive: it waits until somebody asks
    found = amx_status()
    assert found == amx_status() == mxmp.enable_amx() and asked
    assert not found.on and found.note == (
        "AMX is off: MXNet ran operators of oneDNN, such as convolutions, before mxmp could switch it on. Put "
        "`import mxmp` before the first operator of MXNet."
    )


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


@pytest.mark.parametrize("others", [{}, {"MXMP_AMX": "0"}], ids=str)
def test_a_user_who_has_set_the_variable_gets_the_permission_whatever_else_is_set(others, environ):
    asked = []
    before = environ(lambda: asked.append(1) or 0, refuse, DNNL_MAX_CPU_ISA="AVX512_CORE_AMX", **others)
    found = amx_status()
    assert found.on and asked == [1] and "is set" in found.reason and not found.advice
    assert dict(os.environ) == before


@pytest.mark.parametrize("variables", [{}, {"DNNL_MAX_CPU_ISA": ""}])
def test_onednn_sees_the_variable_while_its_first_operator_runs(variables, environ):
    seen, run_operator = [], amx.run_operator

    def run():
        seen.extend([os.environ["DNNL_MAX_CPU_ISA"], in_c("DNNL_MAX_CPU_ISA")])
        run_operator()

    before = environ(run=run, **variables)
    assert mxmp.enable_amx() == mxmp.enable_amx() == amx_status() == SWITCHED_ON
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


@pytest.mark.parametrize("value", ["0", "false"])
def test_without_onednn_there_is_none(value, environ):
    environ(run=refuse, MXNET_MKLDNN_ENABLED=value)
    assert mxmp.enable_amx().advice == "Unset MXNET_MKLDNN_ENABLED."


@pytest.mark.skipif(read_cpuinfo().has_amx, reason="this processor has AMX")
def test_a_kernel_refuses_where_there_is_no_amx():
    assert amx.request_permission() in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)


@pytest.mark.parametrize("variable", [None, "0", "1"])
def test_importing_mxmp_imports_nothing_of_mxnet_and_leaves_the_environment(variable):
    code = """
import os, sys
before, finders = dict(os.environ), len(sys.meta_path)
import mxmp
assert dict(os.environ) == before and "mxnet" not in sys.modules
print(type(sys.meta_path[0]).__name__ == "AfterImport", "mxmp.devices.amx" in sys.modules)
"""
    environ = {} if variable is None else {"MXMP_AMX": variable}
    has_amx = read_cpuinfo().has_amx
    assert run_python(code, **environ).split() == [str(has_amx and variable != "0"), str(has_amx)]


PLAIN = """
import mxnet as mx, numpy as np
ones = [mx.nd.amp_cast(mx.nd.ones(shape), dtype=np.dtype([("bfloat16", np.uint16)])) for shape in SHAPES]
mx.nd.Convolution(*ones, kernel=(3, 3), num_filter=64, no_bias=True).wait_to_read()
print("lives")
""".replace("SHAPES", "((1, 64, 9, 9), (64, 64, 3, 3))")


BITS = "\nfrom mxmp.devices import amx\nprint(amx.uses_amx())\n"
"""Prints whether oneDNN uses AMX, by the bits of a product."""

@pytest.mark.amx
@pytest.mark.parametrize(
    ("program", "environ", "printed"),
    [
        ("import mxmp, mxnet", {}, "True"),
        ("import mxnet, mxmp", {}, "True"),
        ("import mxnet\nones = mxnet.nd.ones(3) + 1\nimport mxmp", {}, "True"),  # none of oneDNN's operators
        ("import mxmp, mxnet", {"MXMP_AMX": "0"}, "False"),
        ("import mxmp; print(mxmp.enable_amx().on)", {"MXMP_AMX": "0"}, "True True"),
        ("import mxmp, mxnet", {"DNNL_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "False"),
        ("import mxmp, mxnet", {"DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX"}, "True"),
        (PLAIN + "import mxmp", {}, "lives False"),
    ],
)
def test_mxnet_uses_it_by_the_bits_of_a_product(program, environ, printed):
    status = "assert amx.amx_status().on == amx.uses_amx(), amx.amx_status()"
    assert run_python(program + BITS + status, **environ).split() == printed.split()


@pytest.mark.amx
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("import mxmp", ["lives"]),
        ("import mxmp, mxnet, os" + f"\npid = os.fork()\nif not pid:\n    exec({PLAIN + BITS!r})\n    os._exit(0)\nprint(os.waitpid(pid, 0)[1])", ["lives", "True", "0", "lives"]),
        ("import faulthandler, mxmp, mxnet; faulthandler.enable()", ["lives"]),
        (f"import mxmp, mxnet, subprocess, sys; subprocess.run([sys.executable, '-c', {PLAIN!r}], check=True)", ["lives", "lives"]),
        (f"import mxmp, mxnet, os, sys; os.execv(sys.executable, [sys.executable, '-c', {PLAIN!r}])", ["lives"]),
        (f"import mxmp, mxnet, multiprocessing\nif __name__ == '__main__':\n    p = multiprocessing.get_context('spawn').Process(target=exec, args=({PLAIN!r}, {{}}))\n    p.start(); p.join()\n    print(p.exitcode)", ["lives", "0", "lives"]),
        (f"import mxmp, mxnet, sys; mxmp.launch.run(mxmp.launch.plan_processes([sys.executable, '-c', {PLAIN!r}], 1))", ["[worker", "0]", "lives", "lives"]),
    ],
    ids=["import", "fork", "faulthandler", "child", "exec", "spawn", "launch"],
)  # fmt: skip
def test_programs_and_their_children_live(program, printed):
    assert run_python(program + "\n" + PLAIN).split() == printed


@pytest.mark.amx
def test_workers_of_a_data_loader_live():
    code = """
import mxmp, mxnet as mx, numpy as np
from mxnet import gluon

def product(rows):
    dtype = np.dtype([("bfloat16", np.uint16)])
    low = [mx.nd.amp_cast(mx.nd.ones(shape), dtype=dtype) for shape in ((1, 64, 9, 9), (64, 64, 3, 3))]
    return mx.nd.amp_cast(mx.nd.Convolution(*low, kernel=(3, 3), num_filter=64, no_bias=True), dtype="float32")

loader = gluon.data.DataLoader(gluon.data.SimpleDataset(list(range(4))), 2, num_workers=2, batchify_fn=product)
print([batch.mean().asscalar() for batch in loader])
"""
    assert run_python(code).strip() == "[576.0, 576.0]"


@pytest.mark.amx
@pytest.mark.parametrize(("environ", "printed"), [({}, "True True"), ({"MXMP_AMX": "0"}, "False False")])
def test_a_script_that_imports_mxmp_and_freezes_has_it(environ, printed):
    code = """
import mxmp
import mxnet as mx
from mxnet import gluon
net = gluon.nn.Dense(64, in_units=64)
net.initialize()
net.hybridize()
net(mx.nd.ones((1, 64)))
print("bfloat16" in str(next(iter(mxmp.gluon.freeze(net).collect_params().values())).dtype), end=" ")
"""
    assert run_python(code + BITS, **environ).split() == printed.split()
