"""Checkpoints of a net and its trainer: whole sets, or none."""

import os
import re
import shutil

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from mxmp.errors import CheckpointError, StateError, TrainerError
from mxmp.gluon import Trainer, convert, load_checkpoint, save_checkpoint
from tests.freeze import freeze, saved_arrays, scale_of
from tests.gluon.nets import X, cnn, exact, sequence, started, step
from tests.gluon.trainer_tools import backward
from tests.stress.killed import killed_at_each_rename


def trained(steps=0, policy="O2", is_called=True):
    """Return a net, called unless it is not to be, and its trainer, after some steps."""
    net = cnn(policy)
    if is_called:
        net(X)
    trainer = Trainer(net, "adam", {"learning_rate": 0.01}, loss_scale=128)
    for _ in range(steps):
        step(net, trainer)
    return net, trainer


def seen(net, trainer):
    """Return all that a checkpoint has of a net and its trainer."""
    return freeze(exact(net)), saved_arrays(trainer.save_states), scale_of(trainer), trainer.optimizer.num_update


@pytest.mark.behaviour("a resumed run")
@pytest.mark.parametrize("is_called", [True, False], ids=["called before it is loaded", "not called"])
@pytest.mark.parametrize("policy", [None, "O1", "O2", "O3", pytest.param("bfloat16", marks=pytest.mark.bfloat16)])
def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(policy, is_called, tmp_path):
    prefix, pair = str(tmp_path / "net"), trained(2, policy)
    save_checkpoint(prefix, 7, *pair)
    assert sorted(os.listdir(tmp_path)) == ["net-0007.manifest.json", "net-0007.params", "net-0007.states"]
    resumed = trained(0, policy, is_called)
    load_checkpoint(prefix, 7, *resumed)
    assert not is_called or seen(*resumed) == seen(*pair)
    for each in (pair, resumed):
        step(*each)
    assert seen(*resumed) == seen(*pair)


@pytest.mark.stress
@pytest.mark.parametrize("older", ["a set", "no manifest", "nothing"])
def test_a_save_that_is_killed_leaves_the_older_checkpoint_the_newer_or_an_error(older, tmp_path):
    def loaded(prefix):
        pair = trained()
        before = seen(*pair)
        try:
            load_checkpoint(prefix, 1, *pair)
        except CheckpointError:
            assert seen(*pair) == before
            raise
        return seen(*pair)

    (tmp_path / "set").mkdir()
    prefix, newer, whole, found = str(tmp_path / "set" / "net"), trained(2), [], []
    if older != "nothing":
        save_checkpoint(prefix, 1, *trained(1))
        whole.append(loaded(prefix))
    if older == "no manifest":
        os.remove(f"{prefix}-0001.manifest.json")
    for _ in killed_at_each_rename(lambda: save_checkpoint(prefix, 1, *newer), str(tmp_path / "set")):
        try:
            found.append(whole.index(loaded(prefix)))
        except CheckpointError:
            found.append("refused")
    assert len(found) == 3 and "refused" in found and found[0] == ("refused" if older == "nothing" else 0)
    assert loaded(prefix) == seen(*newer)


@pytest.mark.parametrize("name", ["params", "states"])
def test_files_that_were_not_saved_together_are_refused_and_change_nothing(name, tmp_path):
    prefix, (net, trainer) = str(tmp_path / "net"), trained(1)
    save_checkpoint(prefix, 0, net, trainer)
    step(net, trainer)
    save_checkpoint(prefix, 1, net, trainer)
    before = seen(net, trainer)
    shutil.copy(f"{prefix}-0000.{name}", f"{prefix}-0001.{name}")
    with pytest.raises(CheckpointError, match=f"net-0001.{name}: it does not fit"):
        load_checkpoint(prefix, 1, net, trainer)
    os.remove(f"{prefix}-0001.{name}")
    with pytest.raises(CheckpointError, match=f"net-0001.{name}: there is no such file"):
        load_checkpoint(prefix, 1, net, trainer)
    assert seen(net, trainer) == before


def test_a_missing_epoch_is_answered_by_those_that_there_are(tmp_path):
    prefix, (net, trainer) = str(tmp_path / "net"), trained()
    for epoch in (0, 3):
        save_checkpoint(prefix, epoch, net, trainer)
    with pytest.raises(CheckpointError, match="net-0001.params: there is no such file; there are epochs 0, 3."):
        load_checkpoint(prefix, 1, net, trainer)


@pytest.mark.parametrize("call", [save_checkpoint, load_checkpoint], ids=lambda call: call.__name__)
def test_between_backward_and_step_nothing_is_saved_or_loaded(call, tmp_path):
    prefix, (net, trainer) = str(tmp_path / "net"), trained()
    save_checkpoint(prefix, 0, net, trainer)
    step(net, trainer)
    weights = freeze(exact(net))
    backward(trainer, net[3].weight, 1)
    with pytest.raises(TrainerError, match="between backward and step"):
        call(prefix, 0, net, trainer)
    assert freeze(exact(net)) == weights
    trainer.discard_grads()
    load_checkpoint(prefix, 0, net, trainer)
    assert trainer.optimizer.num_update == 0


OTHERS = {
    "another optimizer": (lambda: of_kind("sgd"), StateError, "the optimizer is Adam; expected SGD"),
    "another policy and optimizer": (lambda: of_kind("sgd", "O1"), StateError, "the optimizer is Adam; expected SGD"),
    "another size of the last layer": (lambda: of_kind("adam", units=5), CheckpointError,
        "net-0000.params: the parameters do not fit the net, so that nothing is loaded: Failed loading Parameter '"
    ),
    "a layer less": (lambda: of_kind("adam", layers=1), CheckpointError, "the parameters do not fit the net"),
    "a layer more": (lambda: of_kind("adam", layers=3), CheckpointError, "the parameters do not fit the net"),
}


def of_kind(optimizer, policy="O2", layers=2, units=3, is_called=True):
    """Return a net of dense layers and its trainer."""
    net = started(sequence(*(nn.Dense(units if n else 4) for n in range(layers))))
    convert(net, policy)
    if is_called:
        net(mx.nd.ones((2, 4)))
    return net, Trainer(net, optimizer, {"learning_rate": 0.01}, loss_scale=128)


@pytest.mark.parametrize("make, error, text", OTHERS.values(), ids=OTHERS)
def test_a_checkpoint_of_another_training_changes_nothing(make, error, text, tmp_path):
    prefix, (net, trainer) = str(tmp_path / "net"), make()
    save_checkpoint(prefix, 0, *of_kind("adam"))
    for param in net.collect_params().values():
        param.set_data(np.full(param.shape, 0.3))  # in float16 it is rounded
    with pytest.raises(error, match=re.escape(text)):
        load_checkpoint(prefix, 0, net, trainer)
    assert all((values == np.float32(0.3)).all() for values in exact(net).values())
    assert all((param.data().astype("float32") - 0.3).abs().max() < 1e-3 for param in net.collect_params().values())


def test_a_refused_checkpoint_leaves_parameters_without_shapes_to_their_first_call(tmp_path):
    prefix, (net, trainer) = str(tmp_path / "net"), of_kind("sgd", is_called=False)
    save_checkpoint(prefix, 0, *of_kind("adam"))
    with pytest.raises(StateError):
        load_checkpoint(prefix, 0, net, trainer)
    assert net(mx.nd.ones((2, 6))).shape == (2, 3)
