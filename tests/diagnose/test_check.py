"""What is wrong with a net and its trainer is found before they train; in sound ones nothing, and nothing changes."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import mxmp
from mxmp.diagnose import check
from tests.diagnose.nets import SOFTMAX, state, trainer_of
from tests.processors import AMX, pin, processor_of

DATA, LABELS = mx.nd.random.normal(shape=(8, 16)), mx.nd.arange(8)
SLOW = "slow_policy"  # float16 is emulated on a CPU


def made(*layers, prefix="net_"):
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(*(layer() for layer in layers))
    net.initialize(mx.init.Xavier())
    return net


def dense(units, inputs, **options):
    return lambda: nn.Dense(units, in_units=inputs, **options)


def make(policy="O1", **options):
    net = made(dense(8, 16), lambda: nn.BatchNorm(in_channels=8), dense(8, 8), **options)
    return mxmp.gluon.convert(net, policy) if policy else net


def plain(net, **options):
    return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, **options})


def changed(net, change):
    change(net)
    return net


def cast(net):
    net.cast("float16")  # MXNet leaves the parameters of BatchNorm alone


def frozen(net):
    net[2].weight.grad_req = "null"


def run(net, rows=8):
    with autograd.record():
        net(DATA[:rows])


WRONG = {  # a net, its trainer, the kinds of the findings, and what is in their text
    "plain trainer": (make, plain, f"plain_trainer {SLOW}", "gradients are not scaled"),
    "plain trainer of O2": (lambda: make("O2"), plain, f"plain_trainer {SLOW}", "have no float32 masters"),
    "trainer of another net": (make, lambda net: trainer_of(make(prefix="other_")), f"wrong_trainer {SLOW}", "the trainer has no parameter of 'net"),
    "a forgotten convert": (lambda: make(None), lambda net: mxmp.gluon.Trainer(net.collect_params(), "sgd"), "not_converted", "Call mxmp.gluon.convert(net, policy)"),
    "no loss scale": (make, lambda net: trainer_of(net, None), f"no_loss_scale {SLOW}", "loss_scale='dynamic'"),
    "a weight is NaN": (
        lambda: changed(make(), lambda net: net[0].weight.set_data(net[0].weight.data() * np.nan)),
        trainer_of, f"weights_not_finite {SLOW}", "'net_dense0_weight'",
    ),
    "a norm in float16": (
        lambda: changed(make(None), lambda net: net[1].gamma.cast("float16")), trainer_of, "norm_precision", "cast('float32')",
    ),
    "cast by hand": (
        lambda: changed(make(None), cast), lambda net: plain(net, multi_precision=True), "cast_by_hand", "mxmp.gluon.cast(net, 'float16')",
    ),
    "a trained bias beside a frozen weight": (
        lambda: changed(make(None), frozen), plain, "frozen_weight", "the weight of 'net_dense1' is frozen, and its bias is trained",
    ),
    "gradients add up": (
        lambda: changed(make(None), lambda net: net.collect_params().setattr("grad_req", "add")), plain, "gradients_add_up", "zero_grad()",
    ),
    "outputs in float16": (lambda: make("O3,output=float16"), trainer_of, f"output_precision {SLOW}", "the outputs are float16"),
    "float16 on a CPU": (make, trainer_of, SLOW, "float16 is emulated"),
    "sizes for tensor cores": (
        lambda: changed(mxmp.gluon.convert(made(dense(13, 16), dense(8, 13)), "O1"), run), trainer_of, f"{SLOW} uneven_sizes",
        "'net_dense0_fwd (out 13)', 'net_dense1_fwd (in 13)'",
    ),
    "a batch for tensor cores": (lambda: changed(make(), lambda net: run(net, 7)), trainer_of, f"{SLOW} uneven_sizes", "note: the batch of 7"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_found_and_nothing_is_changed(case):
    make, trainer, kinds, text = WRONG[case]
    net = make()
    trainer, before = trainer(net), state(net)
    found = check(net, trainer)
    assert [each.subject for each in found] == kinds.split(), str(found)
    assert text in str(found)
    assert found and str(found).startswith(("error: ", "note: ")) and state(net) == before


def test_nothing_is_found_in_sound_nets():
    net, other = make(None), make(None, prefix="other_")
    for given in (check(net, trainer_of(net, None)), check(net, trainer_of(net, 1)), check(net, plain(net)), check([net, other], [plain(net), plain(other)])):
        assert not given and str(given) == "nothing found"
    assert "nothing found" in given._repr_html_()


def test_a_trainer_of_bfloat16_without_a_loss_scale_is_told_that_it_checks_nothing(monkeypatch):
    pin(monkeypatch, processor_of(AMX))
    net = make("mixed_bfloat16")
    found = check(net, trainer_of(net, "policy"))
    assert [each.subject for each in found] == ["no_loss_scale"] and "give it loss_scale=1." in str(found)
    assert not check(net, trainer_of(net, 1))


# ---------------------------------------------------------------------- what the trainer says in its first step


def stepped(reduce, size):
    net = make(None)
    trainer = trainer_of(net)
    for _ in range(2):
        with autograd.record():
            loss = reduce(SOFTMAX(net(DATA), LABELS))
            with trainer.scale_loss(loss) as scaled:
                autograd.backward(scaled)
        trainer.step(size)


@pytest.mark.parametrize("size, told", [(8, 1), (1, 0)])
def test_a_loss_of_one_element_that_the_step_divides_is_told_once(size, told, caplog):
    stepped(lambda loss: loss.mean(), size)
    assert caplog.text.count("call step(1)") == told


def test_a_loss_for_each_example_is_divided_without_a_word(caplog):
    stepped(lambda loss: loss, 8)
    stepped(lambda loss: [loss[:4].mean(), loss[4:].mean()], 2)
    assert not caplog.text
