"""Scripts written for contrib.amp: what they read and write of a trainer, and `mxmp run --amp`, without an edit."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import pytest
from gluoncv.utils.parallel import Parallel, Parallelizable
from mxnet import autograd, gluon
from mxnet.contrib import amp as contrib

import mxmp
from mxmp import amp
from mxmp.errors import LossScaleError, TrainerError
from mxmp.loss_scale import DynamicLossScale
from tests.amp.scenarios import TWO, backward, param, values

ROOT = Path(__file__).resolve().parents[2]


def trained(steps=0, scale="dynamic", ctx=None, **kwargs):
    """Return a trainer of one parameter, after some steps."""
    w = param(ctx=ctx)
    trainer = mxmp.gluon.Trainer([w], "adam", {"learning_rate": 0.1}, loss_scale=scale, **kwargs)
    for _ in range(steps):
        step(trainer, w)
    return trainer, w


def step(trainer, w):
    backward(amp, trainer, lambda: [w.data(ctx) ** 2 for ctx in w.list_ctx()])
    trainer.step(1)


# ------------------------------------------------------------------ trainer._amp_loss_scaler


def test_the_names_of_contrib_amp_say_and_set_what_the_loss_scale_is():
    trainer, w = trained(3, DynamicLossScale(init_scale=64.0, growth_interval=2))
    scaler = trainer._amp_loss_scaler
    assert scaler.loss_scale == scaler._loss_scale == scaler._next_loss_scale == trainer.loss_scale.value == 128
    assert (scaler._unskipped, scaler._scale_seq_len) == (1, 2)
    scaler._scale_seq_len = 3
    scales = [step(trainer, w) or trainer.loss_scale.value for _ in range(3)]
    scaler._scale_seq_len = 1  # shorter than what was counted
    assert scales == [128, 256, 256] and scaler._unskipped == 0
    trainer, w = trained(1)
    trainer._amp_loss_scaler._loss_scale = 4096.0
    step(trainer, w)
    assert trainer.loss_scale == DynamicLossScale(value=4096.0, growth_tracker=1)  # the warm-up is over
    scaler = trained(scale=None)[0]._amp_loss_scaler
    scaler._scale_seq_len = 50
    scaler._loss_scale, scaler._next_loss_scale, scaler._unskipped = 1.0, 1.0, 7
    assert (scaler._loss_scale, scaler._unskipped) == (1.0, 0)
    with pytest.raises(LossScaleError, match="^_loss_scale=512.0, but the trainer has no loss scale, as by default with b"):
        scaler._loss_scale = 512.0


def test_a_loop_that_asks_for_an_overflow_goes_on_to_the_step_which_skips():
    trainer, w = trained(1)
    before = w.data().asnumpy()
    backward(amp, trainer, lambda: [1 + (w.data() - w.data()).sqrt()])  # finite, with gradients of NaN
    if not trainer._amp_loss_scaler.has_overflow([w]):
        trainer.step(1)
    assert trainer.skipped_steps == 1
    assert (w.data().asnumpy() == before).all()


def test_a_run_that_saved_the_scale_by_contrib_amps_names_goes_on_as_one_that_was_not_stopped(tmp_path):
    """As Sockeye does it: the updater's states in one file, three numbers of the scale in another."""
    make = lambda: trained(0, DynamicLossScale(init_scale=64.0, growth_interval=3))  # noqa: E731
    whole, w = make()
    for _ in range(2):
        step(whole, w)
    scaler = whole._amp_loss_scaler
    (tmp_path / "scale").write_bytes(pickle.dumps([scaler._loss_scale, scaler._next_loss_scale, scaler._unskipped]))
    (tmp_path / "states").write_bytes(whole._updaters[0].get_states(dump_optimizer=False))
    resumed, again = make()
    again.set_data(w.data())
    resumed.load_states(str(tmp_path / "states"))
    resumed.optimizer.begin_num_update = resumed.optimizer.num_update = 2
    scaler = resumed._amp_loss_scaler
    scaler._loss_scale, scaler._next_loss_scale, scaler._unskipped = pickle.loads((tmp_path / "scale").read_bytes())
    for _ in range(3):
        step(whole, w)
        step(resumed, again)
        assert values(again) == values(w) and resumed.loss_scale == whole.loss_scale


def test_states_of_an_updater_go_to_every_context(tmp_path):
    trainer, w = trained(1, ctx=TWO, kvstore=None)
    (tmp_path / "s").write_bytes(trainer._updaters[0].get_states())
    resumed, again = trained(0, ctx=TWO, kvstore=None)
    resumed.load_states(str(tmp_path / "s"))
    means = [updater.states[0][0] for updater in resumed._updaters]
    assert [mean.ctx for mean in means] == TWO
    assert means[0].asscalar() == means[1].asscalar() == trainer._updaters[0].states[0][0].asscalar() != 0


# ------------------------------------------------------------------ contrib.amp with a trainer of mxmp


@pytest.mark.parametrize("call", ["scale_loss", "init_trainer"])
def test_contrib_amps_own_functions_are_refused_with_the_fix(call, monkeypatch):
    monkeypatch.setattr(contrib.amp, "_amp_initialized", True)
    trainer, _ = trained()
    message = rf"{call} of mxnet.contrib.amp .*\(`from mxmp import amp`\).* `mxmp run --amp float16 SCRIPT`"
    with pytest.raises(TrainerError, match=message):
        contrib.init_trainer(trainer) if call == "init_trainer" else contrib.scale_loss(1, trainer).__enter__()
    assert trainer._amp_loss_scaler.loss_scale == 256


# ------------------------------------------------------------------ init_trainer


@pytest.mark.parametrize(
    ("dtype", "given", "scale"),
    [("float16", (), 256), ("bfloat16", (), None), ("bfloat16", ("dynamic",), 256), ("float16", (None,), None)],
)
def test_init_trainer_scales_where_the_dtype_needs_it_or_it_is_asked(dtype, given, scale):
    w = param()
    trainer = gluon.Trainer([w], "sgd", update_on_kvstore=False)
    amp.init(dtype)
    try:
        amp.init_trainer(trainer, *given)
    finally:
        amp.disable()
    assert backward(amp, trainer, lambda: w.data() * 1.0) == (scale or 1)
    assert trainer.step(1)


class _Stepping(gluon.Trainer):
    """A trainer with a step of its own."""

    step = gluon.Trainer.update


def plain_step(trainer):
    with autograd.record():
        losses = [data * 1.0 for data in trainer._params[0].list_data()]
    autograd.backward(losses)
    trainer.step(1)


TOO_LATE = {
    "a kvstore that updates": (gluon.Trainer, {}, lambda trainer: trainer._init_kvstore(), "is set up already and updates"),
    "a step in float16": (
        gluon.Trainer, {"update_on_kvstore": False, "optimizer_params": {"multi_precision": True}}, plain_step,
        "made a step or loaded states, and parameter 'w' is stored in float16",
    ),
    "a step of its own": (_Stepping, {}, lambda trainer: None, "Stepping has a method step of its own"),
}  # fmt: skip


@pytest.mark.parametrize("kind, options, use, message", TOO_LATE.values(), ids=TOO_LATE)
def test_init_trainer_refuses_a_trainer_that_updates_in_another_way(kind, options, use, message):
    trainer = kind([param(dtype="float16", ctx=TWO)], "sgd", **options)
    use(trainer)
    amp.init()
    try:
        with pytest.raises(TrainerError, match=message):
            amp.init_trainer(trainer)
    finally:
        amp.disable()
    assert type(trainer) is kind


class _Reducing(gluon.Trainer):
    """A trainer that reduces gradients in its own way."""

    calls = 0

    def _allreduce_grads(self):
        self.calls += 1
        super()._allreduce_grads()


def test_one_derived_trainer_changes_and_keeps_its_methods():
    """Also if it was made, and its kvstore set up, before init; its loss scale is set where it is initialized again."""
    methods = dict(vars(gluon.Trainer))
    w = param(ctx=TWO)
    trainer, other = (_Reducing([w], "sgd", {"learning_rate": 1.0}, update_on_kvstore=False) for _ in range(2))
    trainer._init_kvstore()
    amp.init()
    try:
        for scale in (128, 64):
            amp.init_trainer(trainer, loss_scale=scale)
            assert trainer.loss_scale.value == scale
    finally:
        amp.disable()
    assert isinstance(trainer, _Reducing) and isinstance(trainer, mxmp.gluon.Trainer)
    assert dict(vars(gluon.Trainer)) == methods and type(other) is _Reducing
    backward(amp, trainer, lambda: [w.data(ctx) * 0.125 for ctx in TWO])
    assert trainer.step(1) and values(w) == [0.75, 0.75] and trainer.calls == 1


class _Task(Parallelizable):
    def __init__(self, w, trainer):
        self.w, self.trainer = w, trainer

    def forward_backward(self, ctx):
        with autograd.record():
            loss = self.w.data(ctx) * (2 + ctx.device_id)
            with amp.scale_loss(loss, self.trainer) as scaled:
                mx.nd.waitall()  # lets the other thread come
                autograd.backward(scaled)


def test_threads_of_data_parallel_training_take_turns():
    """GluonCV and Sockeye run forward and backward of each context in a thread of its own."""
    w = param(ctx=TWO)
    trainer = mxmp.gluon.Trainer([w], "sgd", {"learning_rate": 1.0})
    parallel = Parallel(2, _Task(w, trainer), serial_init=False)
    for _ in range(8):
        for ctx in TWO:
            parallel.put(ctx)
        for _ in TWO:
            parallel.get()
        assert trainer.step(5)
    assert values(w) == [-7.0, -7.0] and trainer.skipped_steps == 0


# ------------------------------------------------------------------ mxmp run --amp


NAMES = """
import mxnet as mx
assert not any(name.startswith("mxmp.gluon") for name in __import__("sys").modules)  # the script comes first
import mxnet.contrib.amp as package
from mxnet.contrib import amp
from mxnet.contrib.amp import amp as inner  # as GluonNLP
from mxnet.contrib.amp.lists import symbol_fp16
import mxmp.amp
assert package is amp is mx.contrib.amp and inner.scale_loss is amp.scale_loss is mxmp.amp.scale_loss
assert symbol_fp16.FP16_FUNCS is mxmp.amp.lists.symbol_fp16.FP16_FUNCS
print(amp._amp_initialized, inner._amp_initialized)
before = mx.nd.FullyConnected
inner.init()
print(amp._amp_initialized, inner._amp_initialized, mx.nd.FullyConnected is before)
net = mx.gluon.nn.Dense(2, in_units=2)
net.initialize()
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=False)
amp.init_trainer(trainer)
print(trainer._amp_loss_scaler.loss_scale)
mxmp.amp.disable()
amp.init("float16")
amp.init_trainer(trainer)
print(trainer._amp_loss_scaler.loss_scale)
"""


@pytest.mark.slow
def test_run_puts_mxmp_amp_in_the_place_of_contrib_amp(tmp_path):
    (tmp_path / "script.py").write_text(NAMES)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "mxmp", "run", "--amp", "bfloat16", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["False False", "True True True", "1.0", "256.0"], done.stderr
