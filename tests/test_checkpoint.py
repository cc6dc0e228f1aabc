"""The structure of a checkpoint's parameters: what MXNet wrote is accepted, what does not add up is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from mxmp.errors import CheckpointError
from mxmp.symbol import load_params, save_checkpoint
from tests.arrays_files import KINDS, numpys
from tests.symbol.refusals import refused

FUZZER = Path(__file__).parent / "symbol" / "damaged_files.py"


@pytest.mark.parametrize("write", KINDS.values(), ids=KINDS)
def test_what_mxnet_writes_is_accepted_and_named_if_it_is_cut_off_anywhere(write, tmp_path):
    path = tmp_path / "file"
    write(str(path))
    with mx.util.np_shape(write is numpys):
        assert sum(map(len, load_params(str(path)))) == len(mx.nd.load(str(path)))
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with refused(CheckpointError, str(path), "truncated"):
            load_params(str(path))


def test_old_files_are_read_as_mxnet_reads_them_and_a_sparse_array_may_be_larger_than_its_file(tmp_path):
    file = str(tmp_path / "file")
    for kind in ("before 0.12", "0.12"):
        KINDS[kind](file)
        assert load_params(file)[0]["b"].asnumpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    mx.nd.save(file, {"arg:rows": mx.nd.sparse.row_sparse_array((mx.nd.ones((1, 2)), [7]), shape=(10**9, 2))})
    assert load_params(file)[0]["rows"].shape == (10**9, 2)


def test_sparse_arrays_are_saved_after_they_were_computed(tmp_path):
    """MXNet saves the shape of the values before it waits for them, and loads other values then."""
    prefix, dense = str(tmp_path / "net"), np.random.RandomState(0).rand(50, 40)
    for _ in range(20):
        arrays = {kind: mx.nd.array(dense).tostype(kind) for kind in ("row_sparse", "csr")}
        save_checkpoint(prefix, 0, mx.sym.var("x"), arrays, {})
        for array in load_params(f"{prefix}-0000.params")[0].values():
            np.testing.assert_array_equal(array.asnumpy(), dense.astype(np.float32))


@pytest.fixture(scope="module")
def fuzzer():
    """Return a process that reads 400 damaged copies of each file that it is asked for."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    environment = {**os.environ, "PYTHONPATH": str(FUZZER.parent.parent.parent), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, str(FUZZER), "1", "400"], env=environment, **streams) as process:
        yield process
        process.stdin.close()  # which ends it


@pytest.mark.parametrize(
    "kind",
    [
        "named",
        "sparse",
        pytest.param("numpy", marks=pytest.mark.slow),
        pytest.param("before 0.12", marks=pytest.mark.slow),
    ],
)
def test_a_damaged_file_is_refused_or_harmless(kind, tmp_path, fuzzer):
    """In a process with 1 GiB of addresses to spare: it neither dies nor fails otherwise, nor hangs."""
    file = str(tmp_path / "file")
    KINDS[kind](file)
    print(file, file=fuzzer.stdin)
    found = json.loads(fuzzer.stdout.readline())
    assert "died" not in found and not found["bad"]
    assert found["refused"] > 130 and found["loaded"] > 5


LOADS = """
import sys
import mxmp
import mxnet as mx
from mxmp.errors import CheckpointError
from mxmp.gluon import convert, freeze
from mxmp.module import Module
from mxmp.symbol import convert_checkpoint, load_checkpoint
from tests.arrays_files import arrays_file, sparse_entry

folder = sys.argv[1]
mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, no_bias=True, name="fc").save(folder + "/net-symbol.json")
net = mx.gluon.nn.Dense(4, use_bias=False, in_units=2)
net.initialize()
convert(net, "O1")
loads = {
    "weight": lambda: net.load_parameters(folder + "/net-0000.params"),
    "arg:fc_weight": lambda: Module.load(folder + "/net", 0),
    "arg:fc_weight ": lambda: freeze(load_checkpoint(folder + "/net", 0)),
    "arg:fc_weight  ": lambda: convert_checkpoint(folder + "/net", 0, folder + "/low"),
}
for sparse in [((4, 2), (1, 2), [10**9]), ((4, 2), (1, 2), [-5]), ((4, 2), (1,), [0, 9, 9, 9, 1], [7])]:
    for name, load in loads.items():
        with open(folder + "/net-0000.params", "wb") as stream:
            stream.write(arrays_file([sparse_entry(*sparse)], [name.strip().encode()]))
        try:
            load()
        except CheckpointError as e:
            assert "net-0000.params: entry 0:" in str(e), e
            print("refused")
"""


def test_indices_beyond_an_array_are_refused_wherever_parameters_are_loaded(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(FUZZER.parent.parent.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LOADS, str(tmp_path)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.split() == ["refused"] * 12


def test_a_file_that_begins_as_another_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(bytes(64))
    with pytest.raises(CheckpointError, match="found 0x0, expected 0x112, which a file of mx.nd.save begins with"):
        load_params(str(tmp_path / "file"))
