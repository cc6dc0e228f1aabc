"""The rounding operators, compiled: against numpy, and whole networks against those that round by casts."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest

from mxmp import Policy
from mxmp.gluon import convert
from mxmp.passes.emulate import ROUND, ROUND_FORWARD
from mxmp.rounding import build, library, trial
from mxmp.symbol import convert_graph, rewrite

compiled = [pytest.mark.compiler, pytest.mark.slow]


def values():
    """All float16 values, what lies between each two, the edges of the range, and a million random float32."""
    rng = np.random.RandomState(0)
    grid = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = np.sort(grid[np.isfinite(grid)].astype(np.float64))
    ties = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    edges = [65504, 65519.99, 65520, 65536, 3e38, np.inf, np.nan, 0, 2**-24, 2**-25, 2**-26, 1e-45, 2**-14]
    edges = np.concatenate([edges, np.negative(edges)]).astype(np.float32)
    bits = rng.randint(0, 1 << 32, 1 << 20, dtype=np.uint64).astype(np.uint32).view(np.float32)
    around = [np.nextafter(ties, np.float32(side)) for side in (-np.inf, np.inf)]
    return np.concatenate([grid, ties, *around, edges, bits, rng.standard_normal(1 << 20).astype(np.float32)])


def rounded(array):
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float16).astype(np.float32)


def assert_same_bits(found, expected):
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    sound = ~np.isnan(expected)
    assert np.array_equal(found[sound].view(np.uint32), expected[sound].view(np.uint32))


class TestCompiled:
    pytestmark = compiled

    @pytest.mark.parametrize("grad_req", ["write", "add"])
    @pytest.mark.parametrize("op", [ROUND, ROUND_FORWARD])
    def test_values_and_gradients_have_numpys_bits(self, op, grad_req, operators):
        x = values()
        data, head = mx.nd.array(x), mx.nd.array(x[::-1].copy())
        data.attach_grad(grad_req)
        data.grad[:] = 1
        with mx.autograd.record():
            found = mx.nd.CachedOp(trial.operator(op))(data)
        found.backward(head)
        assert_same_bits(found.asnumpy(), rounded(x))
        expected = rounded(x[::-1].copy()) if op == ROUND else x[::-1]
        with np.errstate(all="ignore"):
            assert_same_bits(data.grad.asnumpy(), expected + np.float32(1) if grad_req == "add" else expected)

    def test_rounding_by_integers_has_numpys_bits(self, operators):
        x = values()
        found = np.empty_like(x)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (x, found)]
        ctypes.CDLL(str(operators)).mxmp_round_by_bits(*pointers, ctypes.c_int64(x.size))
        assert_same_bits(found, rounded(x))

    def test_other_dtypes_are_refused(self, operators):
        with pytest.raises(mx.MXNetError, match="only float32"):
            mx.nd.CachedOp(trial.operator(ROUND))(mx.nd.ones(3, dtype="float64")).wait_to_read()

    @pytest.mark.parametrize("static", [False, True])
    @pytest.mark.parametrize("policy", ["O1", "O2"])
    def test_a_training_step_has_the_bits_of_one_that_rounds_by_casts(self, policy, static, operators, monkeypatch):
        found = {}
        for native in (False, True):
            monkeypatch.setattr(rewrite.rounding, "available", lambda native=native: native)
            found[native] = step(policy, static)
        assert len(found[True]) > 5
        for one, other in zip(found[False], found[True]):
            assert np.abs(one).max() > 0
            np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize("grad_req", ["write", "add"])
    def test_gradients_of_nine_readers_add_up_in_an_executor(self, grad_req, operators, monkeypatch):
        found = {}
        for native in (False, True):
            monkeypatch.setattr(rewrite.rounding, "available", lambda native=native: native)
            found[native] = bound(grad_req)
        for one, other in zip(found[False], found[True]):
            assert np.abs(one).max() > 0
            np.testing.assert_array_equal(one, other)

    def test_the_graph_has_the_operators_in_the_place_of_casts(self, operators, monkeypatch):
        monkeypatch.setattr(rewrite.rounding, "available", lambda: True)
        text = convert_graph(network(), Policy.parse("O1"), {"data": (2, 3, 8, 8)}).on_cpu().tojson()
        assert text.count(f'"{ROUND}"') > 3 and text.count(f'"{ROUND_FORWARD}"') == 1
        assert '"Cast"' not in text and "BlockGrad" not in text


def network():
    data = mx.sym.var("data")
    conv = mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=8, no_bias=True, name="conv")
    norm = mx.sym.BatchNorm(conv, name="norm", fix_gamma=False)
    again = mx.sym.Convolution(mx.sym.relu(norm + conv), kernel=(1, 1), num_filter=8, no_bias=True, name="again")
    return mx.sym.FullyConnected(again, num_hidden=4, name="fc")


def bound(grad_req):
    """Return the output and the gradients of nine dense layers with shared inputs, bound to an executor."""
    data, weight = mx.sym.var("data"), mx.sym.var("weight")
    layers = [mx.sym.FullyConnected(data, weight, num_hidden=4, no_bias=True, name=f"fc{i}") for i in range(9)]
    symbol = convert_graph(mx.sym.add_n(*layers), Policy.parse("O1"), {"data": (2, 3)}).on_cpu()
    rng = np.random.RandomState(0)
    values = {"data": mx.nd.array(rng.standard_normal((2, 3))), "weight": mx.nd.array(rng.standard_normal((4, 3)))}
    grads = {name: mx.nd.ones_like(value) for name, value in values.items()}
    executor = symbol.bind(mx.cpu(), values, grads, grad_req)
    executor.forward(is_train=True)
    executor.backward([mx.nd.array(rng.standard_normal((2, 4)))])
    return [each.asnumpy() for each in (executor.outputs[0], grads["data"], grads["weight"])]


def step(policy, static):
    """Return the output and the gradients of a net without a BatchNorm, whose sums depend on layouts."""
    mx.random.seed(1)
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(mx.gluon.nn.Conv2D(8, 3, padding=1, in_channels=3), mx.gluon.nn.Activation("relu"))
        net.add(mx.gluon.nn.Conv2D(16, 3, padding=1, in_channels=8), mx.gluon.nn.MaxPool2D())
        net.add(mx.gluon.nn.Dense(5, in_units=16 * 16))
    net.initialize(mx.init.Normal(0.1))
    convert(net, policy)
    net.hybridize(static_alloc=static, static_shape=static)
    data = mx.nd.random.normal(shape=(4, 3, 8, 8))
    data.attach_grad()
    with mx.autograd.record():
        out = net(data)
    out.backward()
    return [each.asnumpy() for each in (out, data.grad, *(p.grad() for p in net.collect_params().values()))]


@pytest.fixture
def target(monkeypatch, tmp_path):
    """Where a library is to be built, by a process that keeps its priority."""
    monkeypatch.setattr(build.os, "nice", lambda by: None)
    return tmp_path / "cache" / "rounding.so"


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """Return a function that makes a shell script the compiler."""

    def make(script):
        path = tmp_path / "cxx"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return make


def beside(target):
    return sorted(each.name for each in target.parent.iterdir())


def test_without_a_compiler_nothing_is_built(monkeypatch, tmp_path, target):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    build.main(str(target))
    assert beside(target) == ["rounding.failed.txt", "rounding.lock"]
    assert "no C++ compiler" in library.failure(target).read_text()


def test_a_compiler_that_fails_is_quoted(compiler, target):
    compiler("echo no such language >&2; exit 3")
    build.main(str(target))
    why = library.failure(target).read_text()
    assert "ended with 3" in why and "no such language" in why
    assert not target.exists()


@pytest.mark.slow
def test_a_library_that_fails_the_trial_is_not_kept(compiler, target):
    compiler('for last; do :; done; echo no library > "$last"')
    build.main(str(target))
    assert "cannot be loaded" in library.failure(target).read_text()
    assert beside(target) == ["rounding.failed.txt", "rounding.lock"]


@pytest.mark.parametrize(
    "script",
    [
        "kill -9 $$",
        "kill -TERM $$",
        "echo 'c++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1",
        "echo 'error: No space left on device' >&2; exit 1",
        "exec sleep 60",
    ],
)
def test_a_compiler_that_is_stopped_leaves_no_note(script, compiler, target, monkeypatch):
    monkeypatch.setattr(build, "_SECONDS", 1)
    compiler(script)
    build.main(str(target))
    assert beside(target) == ["rounding.lock"]
    compiler("exit 3")
    build.main(str(target))
    assert library.failure(target).exists()


def test_one_process_builds_at_a_time(monkeypatch, target):
    built = []
    monkeypatch.setattr(build, "build", lambda each: built.append(each) or "")
    target.parent.mkdir()
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); sys.stdin.read()"
    lock = str(target.with_suffix(".lock"))
    with subprocess.Popen([sys.executable, "-c", code, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        for _ in range(3):
            build.main(str(target))
        assert not built
        other.kill()
        other.wait()
    build.main(str(target))
    assert built == [target]


@pytest.mark.parametrize("what", ["library", "note"])
def test_what_another_process_has_built_meanwhile_stays(what, monkeypatch, target):
    monkeypatch.setattr(build, "build", lambda each: pytest.fail("built again"))
    target.parent.mkdir()
    (target if what == "library" else library.failure(target)).write_bytes(library.sealed(b"there"))
    build.main(str(target))


def test_the_trial_finds_operators_that_do_not_round(monkeypatch):
    monkeypatch.setattr(trial, "_operator_on", lambda op: lambda data: mx.sym.identity(data))
    with pytest.raises(AssertionError, match="off, of"):
        trial.check_network(static=True)
