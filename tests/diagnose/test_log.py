"""What logs of training steps record, of every front: to a list, to a table, to event files of TensorBoard.

The table is read by Python's own reader, event files by their format: TFRecords of protocol buffers, see
https://www.tensorflow.org/tutorials/load_data/tfrecord and tensorflow/core/util/event.proto.
"""

import csv
import gc
import math
import os
import struct
import weakref

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon.contrib.estimator import GradientUpdateHandler
from tensorboardX.proto import event_pb2

import mxmp
from mxmp.diagnose import CSVLogger, TensorBoardLogger
from mxmp.errors import CheckpointError, NonFiniteLossError
from mxmp.estimator import MixedPrecisionHandler
from mxmp.loss_scale import DynamicLossScale
from tests.alone import alone
from tests.diagnose.nets import L2, Listed, backward, estimator_of, made, trainer_of
from tests.full_disk import files_of_at_most
from tests.train.adapters import ADAPTERS, Module, Trainer


def over(*adapters):
    return pytest.mark.parametrize("make", adapters, ids=lambda make: make.__name__)


def attached(make=Trainer, loss_scale=4.0, log=None, **options):
    adapter = make(loss_scale, **options)
    return adapter, (log or Listed()).attach(adapter.owner)


def norm(*values):
    return pytest.approx(np.linalg.norm(np.concatenate([np.ravel(value) for value in values])), rel=1e-6)


@over(*ADAPTERS)
def test_each_step_is_recorded_with_its_scale_and_the_norm_of_true_gradients(make):
    adapter, log = attached(make, DynamicLossScale(init_scale=4, growth_interval=2))
    adapter.run({"a": [0.25, -0.5], "b": [1.0]})
    adapter.run(0.125)
    adapter.run(0.25, bad=np.inf)
    first, second, skipped = log.closed()
    assert [(each.step, each.taken) for each in log.records] == [(1, True), (2, True), (3, False)]
    assert (first.scale, first.next_scale, second.scale) == (4, 4, 4)
    assert [each.grad_norm for each in (first, second)] == [norm([0.25, -0.5, 1.0]), norm([0.125] * 3)]
    assert not math.isfinite(skipped.grad_norm)
    assert skipped.why.startswith("gradients not finite: '") and first.why == ""
    assert 0 <= first.seconds <= second.seconds


LOW = {"loss_scale": 2.0**10, "dtype": "float16"}  # 0.25 is 256 there, whose square float16 does not hold
NORMS = {
    "several contexts are summed first": (Trainer, {"contexts": 2}, lambda adapter: adapter.run([0.25, 0.5]), 0.75),
    "those of a module too": (Module, {"contexts": 2}, lambda adapter: adapter.run([0.25, 0.5]), 0.75),
    "without a kvstore the largest counts": (
        Trainer, {"contexts": 2, "kvstore": None}, lambda adapter: adapter.run([0.25, 0.5]), 0.5
    ),
    **{f"float16 is squared in float32, {make.__name__}": (make, LOW, lambda adapter: adapter.run(0.25), 0.25)
       for make in (Trainer, Module)},
    "before clipping": (Trainer, {}, lambda adapter: (adapter.backward(0.5), adapter.clip(1e-2), adapter.step()), 0.5),
}  # fmt: skip


@pytest.mark.parametrize("make, options, act, gradient", NORMS.values(), ids=NORMS.keys())
def test_the_norm_is_that_of_the_step(make, options, act, gradient):
    adapter, log = attached(make, **options)
    act(adapter)
    assert log.closed()[0].grad_norm == norm([gradient] * 3)


def test_nothing_is_read_from_a_device_before_the_next_finite_check(monkeypatch):
    (adapter, log), reads, original = attached(), [], mx.nd.NDArray.asnumpy
    monkeypatch.setattr(mx.nd.NDArray, "asnumpy", lambda array: reads.append(array) or original(array))
    adapter.backward()
    log.log(loss=mx.nd.ones(3))
    adapter.step()
    assert len(reads) == 1  # the finite check
    adapter.run()
    assert len(reads) == 4  # the next one, then norm and loss of the first step
    log.close()


@pytest.mark.parametrize("end", [lambda adapter: adapter.step(), lambda adapter: adapter.clip(1.0)], ids=["step", "clip"])
def test_a_step_that_raised_is_recorded_at_once_in_one_line(end):
    adapter, log = attached()
    adapter.backward(np.nan)
    with pytest.raises(NonFiniteLossError):
        end(adapter)
    assert [(record.taken, "\n" in record.error) for record in log.records] == [(False, False)]
    assert log.records[0].error.startswith("NonFiniteLossError: the loss itself is NaN")


@pytest.mark.parametrize("sparse, share", [(False, "2.5 %"), (True, "12.5 %")])
def test_a_skipped_step_names_the_gradients_that_are_not_finite_the_smallest_share_first(sparse, share):
    """Of a row_sparse gradient the stored rows count: two of ten, with four elements each."""
    net = gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(gluon.nn.Embedding(10, 4, sparse_grad=sparse), gluon.nn.Dense(2, in_units=8, use_bias=False))
    net.initialize()
    trainer = trainer_of(net, 8.0)
    with Listed().attach(trainer) as log:
        backward(trainer, lambda: net(mx.nd.array([[1, 2]])).sum())
        rows, grad = np.ones((2, 4), np.float32), net[0].weight.grad()
        rows[1, 1] = np.nan
        stored = mx.nd.sparse.row_sparse_array((rows, [1, 2]), shape=(10, 4))
        grad[:] = stored if sparse else stored.tostype("default")
        net[1].weight.grad()[:] = np.inf
        assert not trainer.step(1)
    assert log.records[0].why == f"gradients not finite: 'net_embedding0_weight' ({share}), 'net_dense0_weight' (100 %)"


# ---------------------------------------------------------------------- the end of a log


LEFT = []  # open when the program ends


def train_and_leave_the_log_open():
    adapter, log = attached(log=CSVLogger(os.environ["RUN"]))
    adapter.run()
    LEFT.extend([adapter, log])


def test_the_end_of_the_program_writes_the_last_step(tmp_path, monkeypatch):
    monkeypatch.setenv("RUN", str(tmp_path))
    alone(train_and_leave_the_log_open)
    assert [row["step"] for row in rows(tmp_path / "steps.csv")] == ["1"]


def test_a_log_that_was_never_closed_keeps_nothing_alive():
    adapter, log = attached()
    adapter.run()
    kept = [weakref.ref(log), weakref.ref(adapter.owner)]
    del adapter, log
    gc.collect()
    assert [each() for each in kept] == [None, None]


# ---------------------------------------------------------------------- the loss


@pytest.mark.parametrize("loss_scale", [4.0, None])
@pytest.mark.parametrize("after", [False, True])
def test_a_loss_is_that_of_the_step_under_way_or_after_it_of_that_step(after, loss_scale):
    adapter, log = attached(loss_scale=loss_scale)
    for loss in (3.0, 2.0):
        for act in [adapter.run, lambda loss=loss: log.log(loss=loss)][:: 1 if after else -1]:
            act()
    adapter.run()
    assert [each.loss for each in log.closed()][:2] == [3.0, 2.0]


@pytest.mark.parametrize(
    ("loss", "mean"),
    [
        (np.float32(0.5), 0.5),
        (3, 3.0),
        (mx.nd.array([1, 2, 6]).astype("int32"), 3.0),
        (mx.nd.array([60000, 60000]).astype("float16"), pytest.approx(60000, rel=2.0**-8)),  # float16 has no sum of them
        ([mx.nd.array([1, 2, 6]), mx.nd.array([7], ctx=mx.cpu(1))], 4.0),
        (mx.np.array([[1.0, 3.0]]), 2.0),
    ],
)
def test_losses_are_averaged(loss, mean):
    adapter, log = attached()
    adapter.backward()
    log.log(loss=loss)
    adapter.step()
    assert log.closed()[0].loss == mean


def test_losses_whose_gradients_were_discarded_are_not_those_of_the_step():
    adapter, log = attached()
    adapter.backward(1000.0)
    adapter.discard()
    with pytest.raises(KeyError), autograd.record(), adapter.scale_loss(adapter.losses(100.0)) as scaled:
        autograd.backward(scaled)
        raise KeyError
    adapter.run(3.0)  # the weights add up to 1
    assert log.closed()[0].loss == 3.0


@pytest.mark.parametrize("loss_scale", [64.0, None])
@pytest.mark.parametrize("where", ["before backward", "before step", "after step"])
def test_the_loss_of_a_group_is_the_mean_over_its_batches_wherever_it_is_given(where, loss_scale):
    adapter, log = attached(loss_scale=loss_scale)
    accumulator, losses = mxmp.gluon.Accumulator(adapter.owner, 3), []
    for rows in accumulator([4, 2, 2, 4, 4, 1, 3, 5]):  # the last group has two
        with autograd.record():
            loss = sum(each.data().sum() for each in adapter.params) * mx.nd.random.normal(shape=(rows,))
        losses.append(loss.asnumpy())
        log.log(loss) if where == "before backward" else None
        with adapter.scale_loss(loss) as scaled:
            scaled.backward()
        log.log(loss) if where == "before step" else None
        accumulator.step(rows)
        log.log(loss) if where == "after step" else None
    expected = [np.concatenate(group).mean() for group in (losses[:3], losses[3:6], losses[6:])]
    np.testing.assert_allclose([record.loss for record in log.closed()], expected, rtol=1e-5)


# ---------------------------------------------------------------------- fits


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("more", [[], [GradientUpdateHandler(priority=-3000)]], ids=["", "the step is first"])
def test_an_estimator_takes_a_log_as_a_handler(order, more):
    net, log = made(gluon.nn.Dense(2, in_units=3)), Listed()
    data = gluon.data.DataLoader(gluon.data.ArrayDataset(mx.nd.random.normal(shape=(12, 3)), mx.nd.ones((12, 2))), 4)
    outputs = [L2(net(x), y).mean().asscalar() for x, y in data]
    estimator = estimator_of(net, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0}))
    handlers = [*[MixedPrecisionHandler("float32", loss_scale=128), log][::order], *more]
    estimator.fit(data, epochs=2, event_handlers=[*handlers])
    assert [each.step for each in log.records] == [1, 2, 3, 4, 5, 6]
    assert [each.loss for each in log.records] == pytest.approx(outputs * 2, rel=1e-5)
    assert all(each.scale == 128 and each.grad_norm > 0 for each in log.records)
    estimator.fit(data, epochs=1, event_handlers=[*handlers])
    assert [each.step for each in log.closed()[6:]] == [7, 8, 9]


def test_a_module_is_attached_before_it_is_fitted():
    data = mx.io.NDArrayIter(np.ones((12, 3), "float32"), np.ones(12, "float32"), 4, label_name="softmax_label")
    output = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2), name="softmax")
    module = mxmp.module.Module(output, policy="O1", loss_scale=8)
    with Listed().attach(module) as log:
        module.fit(data, num_epoch=2, batch_end_callback=lambda param: log.log(loss=param.nbatch))
    assert [(each.step, each.loss) for each in log.records] == [(1, 0), (2, 1), (3, 2), (4, 0), (5, 1), (6, 2)]
    assert all(each.scale == 8 and each.grad_norm > 0 for each in log.records)


# ---------------------------------------------------------------------- a table

COLUMNS = "step,seconds,taken,scale,next_scale,grad_norm,loss,error,why"


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_the_file_of_a_run_has_a_line_per_step_and_lacks_only_the_last_while_it_goes_on(tmp_path):
    path, scale = tmp_path / "run" / "steps.csv", DynamicLossScale(init_scale=256)
    adapter, log = attached(log=CSVLogger(tmp_path / "run", every=2), loss_scale=scale)
    for bad in (None, np.inf, None):
        adapter.run(0.25, bad=bad)
        log.log(loss=1.5)
    assert len(rows(log.path)) == 2 and path.read_bytes().endswith(b"\n")
    log.close()
    first, second, third = rows(log.path)
    assert ",".join(first) == COLUMNS and repr(log) == f"CSVLogger({str(path)!r}, every=2, steps=3)"
    assert (first["step"], first["taken"], first["loss"], first["error"]) == ("1", "1", "1.5", "")
    assert float(first["scale"]) == float(first["next_scale"]) == 256 == 2 * float(second["next_scale"])
    assert float(first["grad_norm"]) == float(third["grad_norm"]) == pytest.approx(0.25 * np.sqrt(3))
    assert (second["step"], second["taken"], second["grad_norm"]) == ("2", "0", "")


def test_seconds_and_lines_go_on_where_a_log_is_attached_again_or_a_run_resumed(tmp_path, monkeypatch):
    clock, adapter = [0.0], Trainer(4.0)
    monkeypatch.setattr("mxmp.diagnose.log.time.monotonic", lambda: clock[0])
    for _run in range(2):
        with CSVLogger(tmp_path) as log:
            for _ in range(2):
                log.attach(adapter.owner)
                clock[0] += 0.5
                adapter.run(0.25)
                log.detach()
                clock[0] += 10
    assert [row["seconds"] for row in rows(log.path)] == ["0.5", "1.0", "1.5", "2.0"]


@pytest.mark.parametrize("kept", ["", COLUMNS[:10], f"{COLUMNS}\n", f"{COLUMNS}\n2,0.5,1,65"])
def test_a_line_that_was_never_finished_is_taken_out(kept, tmp_path):
    (tmp_path / "steps.csv").write_text(kept)
    adapter, log = attached(log=CSVLogger(tmp_path))
    adapter.run()
    log.close()
    assert (tmp_path / "steps.csv").read_text().startswith(f"{COLUMNS}\n1,")


def test_a_full_disk_is_an_error_that_leaves_whole_lines(tmp_path):
    adapter, log = attached(log=CSVLogger(tmp_path))
    adapter.run(0.25)
    size = (tmp_path / "steps.csv").stat().st_size
    with files_of_at_most(size + 10), pytest.raises(CheckpointError, match="steps.csv cannot be written: File too large"):
        adapter.run(0.25)
    assert (tmp_path / "steps.csv").stat().st_size == size
    adapter.run(0.25)
    log.close()
    assert [row["step"] for row in rows(log.path)] == ["3"]


@pytest.mark.parametrize("text", ["step,loss\n1,2\n", "no line at all"])
def test_a_file_with_other_columns_is_refused_and_left_alone(tmp_path, text):
    (tmp_path / "steps.csv").write_text(text)
    with pytest.raises(CheckpointError, match=r"steps\.csv: its columns are '.*'; expected 'step,seconds"):
        CSVLogger(tmp_path)
    assert (tmp_path / "steps.csv").read_text() == text


@pytest.mark.parametrize("line", ["1," + "9" * 200_000, "1,inf", "1,nan", "1,x", "1", "\0,x", '1,"'], ids=lambda line: ascii(line[:6]))
def test_a_log_behind_a_damaged_line_goes_on_from_0_seconds(line, tmp_path):
    (tmp_path / "steps.csv").write_text(f"{COLUMNS}\n{line}\n")
    adapter, log = attached(log=CSVLogger(tmp_path))
    adapter.run(0.25)
    log.close()
    kept, added = (tmp_path / "steps.csv").read_text()[len(COLUMNS) + 1 :].splitlines()
    assert kept == line
    assert 0 <= float(added.split(",")[1]) < 60


def test_a_file_is_one_logs_until_that_is_closed(tmp_path):
    with CSVLogger(tmp_path), pytest.raises(CheckpointError, match="another log is writing it"):
        CSVLogger(tmp_path)
    CSVLogger(tmp_path).close()


# ---------------------------------------------------------------------- event files


def events(folder):
    """Return the events of each file of a folder: each behind its length, between two checksums."""
    files = []
    for path in sorted(folder.iterdir()):
        content, found = path.read_bytes(), []
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            found.append(event_pb2.Event.FromString(content[12 : 12 + length]))
            content = content[16 + length :]
        assert found[0].file_version == "brain.Event:2" and "tfevents" in path.name
        files.append(found[1:])
    return files


def scalars(folder):
    """Return the scalars of the one file of a folder, by step."""
    (found,) = events(folder)
    return {event.step: {each.tag: each.simple_value for each in event.summary.value} for event in found}


@over(Trainer, Module)
def test_the_scalars_of_each_step_are_in_the_event_file_but_those_that_are_not_finite(make, tmp_path):
    log = TensorBoardLogger(tmp_path / "run")
    adapter, log = attached(make, DynamicLossScale(init_scale=256), log)
    for loss, bad in ((1.5, None), (math.nan, np.inf), (math.inf, None)):
        adapter.run(0.25, bad=bad)
        log.log(loss=loss)
    log.close()
    norm = {"gradients/norm": pytest.approx(0.25 * np.sqrt(3))}
    found = scalars(tmp_path / "run")
    assert found[1] == {"loss_scale": 256, "skipped_steps": 0, "loss": 1.5, **norm}
    assert found[2] == {"loss_scale": 256, "skipped_steps": 1} and found[3]["loss_scale"] == 128 and "loss" not in found[3]


def test_a_resumed_run_begins_a_file_beside_the_first(tmp_path):
    for _ in range(2):  # within a second, for which tensorboardX has one name
        TensorBoardLogger(tmp_path).close()
    assert events(tmp_path) == [[], []]


def test_the_file_is_brought_up_to_date_while_training_goes_on(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("mxmp.diagnose.log.time.monotonic", lambda: clock[0])
    adapter, log = attached(log=TensorBoardLogger(tmp_path))
    for clock[0] in (1.0, 2.0, 8.0):
        adapter.run(0.25)
    assert sorted(scalars(tmp_path)) == [1, 2]
    log.close()
    assert sorted(scalars(tmp_path)) == [1, 2, 3]


def test_a_full_disk_does_not_hang(tmp_path):
    adapter, log = attached(log=TensorBoardLogger(tmp_path))
    with files_of_at_most(10), pytest.raises(CheckpointError, match="its event file cannot be written"):
        for _ in range(1000):  # until the buffer of the file is full
            adapter.run(0.25)
    log.close()
