"""Event files of TensorBoard, read back by the format: TFRecords of protocol buffers.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord; tensorflow/core/util/event.proto.
"""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from mxmp.diagnose import TensorBoardLogger
from mxmp.errors import CheckpointError, DependencyError, LossScaleError, NonFiniteLossError
from mxmp.loss_scale import DynamicLossScale
from tests.full_disk import files_of_at_most
from tests.train.adapters import Module, Trainer


def masked_crc(data):
    """Return the checksum of a TFRecord, bit by bit: CRC-32C, rotated by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(path):
    """Return the events of a file, the checksums compared."""
    content, found, position = path.read_bytes(), [], 0
    while position < len(content):
        head = content[position : position + 8]
        (length,) = struct.unpack("<Q", head)
        body = content[position + 12 : position + 12 + length]
        end = position + 12 + length
        assert struct.unpack("<I", content[position + 8 : position + 12]) == (masked_crc(head),)
        assert struct.unpack("<I", content[end : end + 4]) == (masked_crc(body),)
        found.append(event_pb2.Event.FromString(body))
        position = end + 4
    return found


def scalars(folder):
    """Return {step: {tag: value}} of all event files of a folder."""
    found = {}
    for path in sorted(folder.iterdir()):
        version, *rest = events(path)
        assert version.file_version == "brain.Event:2" and "tfevents" in path.name
        for event in rest:
            found.setdefault(event.step, {}).update({each.tag: each.simple_value for each in event.summary.value})
    return found


class Ledger:
    def shares(self):
        return {"zero_share": 0.5, "subnormal_share": 0.25, "largest": 8.0}


@pytest.mark.parametrize("make", [Trainer, Module], ids=lambda make: make.__name__)
def test_the_scalars_of_each_step_are_in_the_event_file(make, tmp_path):
    adapter = make(DynamicLossScale(init_scale=256, growth_interval=100))
    with TensorBoardLogger(tmp_path / "run").attach(adapter.owner) as log:
        adapter.run(0.25)
        log.log(loss=1.5)
        adapter.run(0.25, bad=np.inf)
        adapter.run(0.25)
    found = scalars(tmp_path / "run")
    assert found[1] == {
        "loss_scale": 256,
        "skipped_steps": 0,
        "loss": 1.5,
        "gradients/norm": pytest.approx(0.25 * np.sqrt(3)),
    }
    assert found[2] == {"loss_scale": 256, "skipped_steps": 1}
    assert found[3] == {"loss_scale": 128, "skipped_steps": 1}


def test_the_shares_of_a_ledger_are_scalars(tmp_path):
    adapter = Trainer(4.0)
    with TensorBoardLogger(tmp_path, ledger=Ledger()).attach(adapter.owner):
        adapter.run(0.25)
    shares = {"gradients/zero_share": 0.5, "gradients/subnormal_share": 0.25, "gradients/largest": 8.0}
    assert shares.items() <= scalars(tmp_path)[1].items()


def test_what_is_not_finite_is_left_out(tmp_path):
    adapter = Trainer(DynamicLossScale(init_scale=256, growth_interval=100))
    with TensorBoardLogger(tmp_path).attach(adapter.owner) as log:
        adapter.run(0.25, bad=np.nan)
        log.log(loss=float("nan"))
    assert scalars(tmp_path) == {1: {"loss_scale": 256, "skipped_steps": 1}}


def test_skips_before_the_log_was_attached_count(tmp_path):
    adapter = Trainer(DynamicLossScale(init_scale=256, growth_interval=100))
    adapter.run(0.25, bad=np.inf)
    with TensorBoardLogger(tmp_path).attach(adapter.owner):
        adapter.run(0.25)
    assert scalars(tmp_path)[2]["skipped_steps"] == 1


def test_a_skip_at_which_the_scale_gives_up_counts_and_a_loss_that_is_not_finite_does_not(tmp_path):
    adapter = Trainer(DynamicLossScale(init_scale=1, max_floor_skips=1))
    with TensorBoardLogger(tmp_path).attach(adapter.owner):
        adapter.backward(np.nan)
        with pytest.raises(NonFiniteLossError):
            adapter.step()
        assert adapter.owner.skipped_steps == 0
        with pytest.raises(LossScaleError):
            adapter.run(0.25, bad=np.inf)
        adapter.run(0.25)
    (path,) = tmp_path.iterdir()
    counts = [each.summary.value[0].simple_value for each in events(path)[1:]]
    assert counts == [0, 1, 1] and adapter.owner.skipped_steps == 1


def test_a_resumed_run_goes_on_in_a_file_beside_the_first(tmp_path):
    for _ in range(2):  # within a second, for which tensorboardX has one name
        adapter = Trainer(4.0)
        with TensorBoardLogger(tmp_path).attach(adapter.owner):
            adapter.run(0.25)
    assert [len(events(path)) for path in tmp_path.iterdir()] == [2, 2]


def test_the_file_is_brought_up_to_date_while_training_goes_on(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("mxmp.diagnose.tensorboard.time.monotonic", lambda: clock[0])
    adapter = Trainer(4.0)
    log = TensorBoardLogger(tmp_path).attach(adapter.owner)
    for clock[0] in (1.0, 2.0, 8.0):
        adapter.run(0.25)
    assert sorted(scalars(tmp_path)) == [1, 2]
    log.close()
    assert sorted(scalars(tmp_path)) == [1, 2, 3]


def test_a_missing_tensorboardx_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    with pytest.raises(DependencyError, match=r"tensorboardX cannot be imported .*pip install 'mxmp\[tensorboard\]'"):
        TensorBoardLogger(tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("folder", ["", None, 3])
def test_what_is_no_folder_is_refused(folder):
    with pytest.raises(CheckpointError, match="^TensorBoardLogger: folder is .*; expected the folder"):
        TensorBoardLogger(folder)


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(CheckpointError, match="run: its event file cannot be written: File exists"):
        TensorBoardLogger(tmp_path / "run")


def test_a_full_disk_is_an_error_and_does_not_hang(tmp_path, monkeypatch):
    monkeypatch.setattr("mxmp.diagnose.tensorboard._FLUSH_SECONDS", -1.0)
    adapter = Trainer(4.0)
    log = TensorBoardLogger(tmp_path).attach(adapter.owner)
    adapter.run(0.25)
    with files_of_at_most(10), pytest.raises(CheckpointError, match="its event file cannot be written"):
        adapter.run(0.25)
    log.close()
