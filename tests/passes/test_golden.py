"""The emulation of float16 against recordings of tensor cores (tools/record_golden.py)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest

from tests.numpy_layers import batch_norm, convolution
from tests.passes.oracle import LOW, Run, float16, forced, ulp
from tools import record_golden

GOLDEN = Path(__file__).parents[1] / "golden"
FILES = sorted(GOLDEN.glob("*.npz"))
HOW_TO_RECORD = (
    "no recording of tensor cores in tests/golden; to make one, run `python3 tools/record_golden.py --out tests/golden` "
    "where PyTorch and a CUDA GPU are"
)

# Tensor cores cut off the bits that a step of the sum cannot hold; a CPU rounds them (half of that).
STEP = 2.0**-23

# Both sides round a float32 sum to float16. Where the sums differ by up to e, their float16 values
# differ if a middle between two float16 values lies within e: for e / ulp of all elements. Sums of
# n values of one size differ by n * STEP / 4 or so: for the longest, n = 288, by 2**-17 relative,
# against an ulp between 2**-11 and 2**-10. That is 1% of the elements; 2% leaves room.
SHARE = 0.02


def read(file):
    """Return a recording's arrays, and what it says about itself."""
    with np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return arrays, json.loads(str(arrays.pop("meta")))


def emulated(arrays, meta):
    """Return the results of a recording's call in emulated float16, named as the recording's."""
    attrs = {key: tuple(value) if isinstance(value, list) else value for key, value in meta["attrs"].items()}
    inputs = {name: array.astype(np.float64) for name, array in arrays.items() if name.startswith("in_")}
    wrt = tuple(sorted(inputs))
    symbol = getattr(mx.sym, meta["op"])(*map(mx.sym.var, wrt), name="call", **attrs)
    for name in symbol.list_auxiliary_states():
        inputs[name] = np.full(arrays["in_1"].shape, 1.0 if name.endswith("var") else 0.0)
    policy = forced("BatchNorm") if meta["op"] == "BatchNorm" else LOW
    found = Run(symbol, inputs, policy, [arrays["head_grad"]], wrt)
    return {"out": found.outputs[0], **{name.replace("in", "grad"): grad for name, grad in found.grads.items()}}


def error_bounds(arrays, meta):
    """Return, per result, the largest difference that the order of float32 sums explains.

    A sum of n products is off by n * STEP times the sum of their magnitudes at most: the call
    itself, made of absolute values.
    """
    x, w = (np.abs(arrays[name].astype(np.float64)) for name in ("in_0", "in_1"))
    head = np.abs(arrays["head_grad"].astype(np.float64))
    if meta["op"] == "BatchNorm":
        return batch_norm_bounds(arrays, meta)
    if meta["op"] == "Convolution":
        attrs = meta["attrs"]
        results = convolution(x, w, attrs["stride"], attrs["pad"], groups=attrs["num_group"], head_grad=head)
        lengths = w[0].size, w[:, 0].size / attrs["num_group"], head[:, 0].size
    elif meta["op"] == "FullyConnected":
        results, lengths = (x @ w.T, head @ w, head.T @ x), (x.shape[1], head.shape[1], head.shape[0])
    else:
        results = x @ w, head @ w.swapaxes(1, 2), x.swapaxes(1, 2) @ head
        lengths = x.shape[2], head.shape[2], head.shape[1]
    return {name: n * STEP * each for name, n, each in zip(("out", "grad_0", "grad_1"), lengths, results)}


def batch_norm_bounds(arrays, meta):
    """Return the bounds for BatchNorm: some ten float32 operations on values of the size of the largest."""
    x, gamma, beta, head = (arrays[name].astype(np.float64) for name in ("in_0", "in_1", "in_2", "head_grad"))
    out, by_data = batch_norm(x, gamma, beta, meta["attrs"]["eps"], head)
    normal = np.abs(out - beta[:, None, None]).max() + np.abs(beta).max()
    sums = np.abs(head).sum((0, 2, 3)).max()
    return {
        "out": 10 * STEP * normal,
        "grad_0": 10 * STEP * np.abs(by_data).max(),
        "grad_1": 10 * STEP * sums * normal,
        "grad_2": 10 * STEP * sums,
    }


def check(arrays, meta):
    """Hold the emulation to a recording."""
    bounds = error_bounds(arrays, meta)
    for name, found in emulated(arrays, meta).items():
        expected = arrays[name].astype(np.float64)
        found = found.astype(np.float64)
        assert found.shape == expected.shape
        difference = np.abs(found - expected)
        if arrays[name].dtype == np.float32:  # BatchNorm's parameters
            assert np.all(difference <= bounds[name]), name
            continue
        np.testing.assert_array_equal(float16(found), found)
        # Two roundings of sums that differ by the bound: one ulp more than the bound.
        assert np.all(difference <= ulp(expected) + bounds[name]), name
        assert np.mean(found != expected) <= SHARE, name


@pytest.mark.skipif(not FILES, reason=HOW_TO_RECORD)
@pytest.mark.parametrize("file", FILES, ids=lambda file: getattr(file, "stem", "none"))
def test_emulation_agrees_with_the_recording(file):
    check(*read(file))


@pytest.mark.skipif(not FILES, reason=HOW_TO_RECORD)
def test_recordings_are_small_and_say_where_they_come_from():
    assert sum(file.stat().st_size for file in FILES) < 2**20
    for file in FILES:
        arrays, meta = read(file)
        assert {"op", "attrs", "device", "torch", "cuda", "cudnn", "seed", "settings"} <= set(meta)
        assert meta["kind"] == "cuda"  # on CPU PyTorch sums the gradients of convolutions in float16
        assert arrays["in_0"].dtype == arrays["out"].dtype == np.float16


# The check itself, on what float64 gives for the same calls: it accepts that, and nothing that is off.


def exact_results(case, arrays, head):
    x, w, *rest = (array.astype(np.float64) for array in arrays)
    if case.op == "Convolution":
        options = {key: case.attrs[key] for key in ("stride", "pad")}
        return convolution(x, w, groups=case.attrs["num_group"], head_grad=head, **options)
    if case.op == "FullyConnected":
        return x @ w.T, head @ w, head.T @ x
    if case.op == "batch_dot":
        return x @ w, head @ w.swapaxes(1, 2), x.swapaxes(1, 2) @ head
    out, by_data = batch_norm(x, w, rest[0], case.attrs["eps"], head)
    normal = (out - rest[0][:, None, None]) / w[:, None, None]
    return out, by_data, (head * normal).sum((0, 2, 3)), head.sum((0, 2, 3))


def made_up(case):
    arrays = record_golden.operands(case)
    shape = exact_results(case, arrays, None)[0].shape if case.op == "Convolution" else output_shape(case)
    head = float16(np.random.RandomState(0).standard_normal(shape))
    names = ["out", *(f"grad_{port}" for port in range(len(arrays)))]
    results = dict(zip(names, exact_results(case, arrays, head)))
    for port, array in enumerate(arrays):
        results[f"grad_{port}"] = results[f"grad_{port}"].astype(array.dtype)
    found = {f"in_{port}": array for port, array in enumerate(arrays)}
    found.update(results, head_grad=head.astype(np.float16), out=results["out"].astype(np.float16))
    return found, json.loads(json.dumps({"op": case.op, "attrs": case.attrs}))


def output_shape(case):
    x, w = case.shapes[:2]
    return {"FullyConnected": (x[0], w[0]), "batch_dot": (*x[:-1], w[-1]), "BatchNorm": x}[case.op]


CASES = {case.name: case for case in record_golden.CASES}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_check_accepts_exact_results(case):
    check(*made_up(case))


@pytest.mark.parametrize("name", ["out", "grad_0", "grad_1"])
def test_check_refuses_one_value_that_is_two_ulp_off(name):
    arrays, meta = made_up(CASES["conv3x3"])
    where = np.unravel_index(np.abs(arrays[name]).argmax(), arrays[name].shape)
    arrays[name][where] += np.float16(2 * ulp(arrays[name][where]))
    with pytest.raises(AssertionError, match=name):
        check(arrays, meta)


def test_check_refuses_many_values_that_are_one_ulp_off():
    arrays, meta = made_up(CASES["conv3x3"])
    arrays["out"][:, 0] = np.nextafter(arrays["out"][:, 0], np.float16(np.inf))  # 3%
    with pytest.raises(AssertionError, match="out"):
        check(arrays, meta)


def test_check_refuses_float16_accumulation():
    arrays, meta = made_up(CASES["gemm"])
    total = np.zeros(arrays["out"].shape, np.float16)
    for k in range(arrays["in_0"].shape[1]):
        total += arrays["in_0"][:, k, None] * arrays["in_1"][None, :, k]
    arrays["out"] = total
    with pytest.raises(AssertionError, match="out"):
        check(arrays, meta)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_operands_are_small_float16_and_always_the_same(case):
    arrays, again = record_golden.operands(case), record_golden.operands(case)
    assert arrays[0].dtype == np.float16 and [array.shape for array in arrays] == list(case.shapes)
    assert sum(array.nbytes for array in arrays) < 2**16
    for array, same in zip(arrays, again):
        np.testing.assert_array_equal(array, same)


def test_recorder_refuses_a_machine_without_a_gpu(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    with pytest.raises(SystemExit) as e:
        record_golden.main(["--out", str(tmp_path / "golden")])
    assert e.value.code == 2
    assert "PyTorch finds no CUDA device" in capsys.readouterr().err
    assert not (tmp_path / "golden").exists()


def test_recorder_says_that_it_needs_pytorch(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit):
        record_golden.main(["--out", str(tmp_path)])
    assert "PyTorch is not installed here" in capsys.readouterr().err


def test_file_names_tell_the_device():
    assert record_golden.slug("NVIDIA A100-SXM4-40GB") == "nvidia-a100-sxm4-40gb"
