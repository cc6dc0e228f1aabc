"""Moving averages of parameters, their exact values, and weights that are taken over as they are."""


import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

from mxmp.errors import CheckpointError, StateError, TrainerError
from mxmp.gluon import Trainer, adopt_weights, averaged, convert, exact_value, export, restore
from tests.freeze import freeze
from tests.gluon.trainer_tools import LOW, TWO, backward, param, run_backward, sgd

X = mx.nd.array(np.random.RandomState(0).randn(8, 6))


def make(policy="O2", steps=0, lr=0.01, ctx=TWO[:1], kvstore="device"):
    """Return a net, whose weights are the same each time, and its trainer, after some steps."""
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=6), nn.BatchNorm(in_channels=5), nn.Dense(2, in_units=5))
    net.initialize(mx.init.Xavier(), ctx=ctx)
    trainer = Trainer(convert(net, policy), "sgd", {"learning_rate": lr, "momentum": 0.9}, kvstore)
    net(X)
    assert all(step(net, trainer, ctx=ctx) for _ in range(steps))
    return net, trainer


def accumulate(net, trainer, ctx=TWO[:1]):
    with mx.autograd.record():
        losses = [net(X.as_in_context(c) * (3 * i + 1) + i).square().mean() for i, c in enumerate(ctx)]
    run_backward(trainer, losses)


def step(net, trainer, clip=False, **kwargs):
    accumulate(net, trainer, **kwargs)
    if clip:
        trainer.clip_global_norm(1e9)
    return trainer.step(1)


def exact(net):
    return {name: exact_value(p).asnumpy() for name, p in net.collect_params().items()}


def assert_close(average, expected):
    for name, value in average.values.items():
        assert value.dtype == np.float32
        np.testing.assert_allclose(value.asnumpy(), expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_averages_are_of_float32_values_and_swapped_in_without_loss(policy):
    net, trainer = make(policy)
    average, expected = averaged(net, decay=0.75), exact(net)
    for _ in range(4):
        assert step(net, trainer)
        average.update()
        expected = {name: 0.75 * expected[name] + 0.25 * value for name, value in exact(net).items()}
    assert_close(average, expected)
    own, output = freeze(exact(net)), net(X).asnumpy()
    with average.swapped_in():
        assert freeze(exact(net)) == freeze(average.values) != own
        assert np.any(net(X).asnumpy() != output)
    assert freeze(exact(net)) == own and np.array_equal(net(X).asnumpy(), output)
    assert step(net, trainer)


@pytest.mark.parametrize("dtype", LOW)
def test_averages_of_weights_that_were_cast_by_hand_leave_integers_out(dtype):
    w, net = param([1.0, 0.3], dtype), mx.gluon.Block()
    count = net.params.get_constant("count", mx.nd.array([1, 1], dtype="int32"))
    count.initialize()
    net.params.update({"w": w})
    average, trainer, first = averaged(net, decay=0.5), sgd(w, 8, lr=2.0**-13), exact_value(w)
    backward(trainer, w, 2.0)
    assert trainer.step(1)
    average.update()
    own = exact_value(w)
    assert freeze(average.values) == freeze({"w": (first + own) / 2})
    with average.swapped_in():
        assert freeze(exact_value(w)) == freeze(average.values["w"]) != freeze(own)
        count.set_data(mx.nd.array([7, 7], dtype="int32"))
    assert freeze(exact_value(w)) == freeze(own)
    assert freeze(count.data()) == freeze(np.array([7, 7], np.int32))


@pytest.mark.parametrize("kvstore", ["device", None])
@pytest.mark.parametrize("policy", ["O1", "O2"])
def test_each_context_has_its_own_values_again(policy, kvstore):
    """Statistics, and without a kvstore weights, are those of each context; it is their mean that is averaged."""
    net, trainer = make(policy, 2, ctx=TWO, kvstore=kvstore)  # with one the first step equalizes the statistics
    params = net.collect_params()

    def means():
        return {name: sum(exact_value(p, ctx).asnumpy() for ctx in TWO) / 2 for name, p in params.items()}

    def everything():
        return freeze([array for p in params.values() for ctx in TWO for array in (exact_value(p, ctx), p.data(ctx))])

    average, before, first = averaged(net, decay=0.5), everything(), means()
    assert_close(average, first)
    for name, p in params.items():
        differ = freeze(exact_value(p, TWO[0])) != freeze(exact_value(p, TWO[1]))
        assert differ == (kvstore is None or "running" in name)
    with average.swapped_in():
        assert all(freeze(p.data(TWO[0])) == freeze(p.data(TWO[1])) for p in params.values())
    assert everything() == before
    step(net, trainer, ctx=TWO)
    average.update()
    assert_close(average, {name: (first[name] + value) / 2 for name, value in means().items()})


@pytest.mark.parametrize("call", ["step", "unscale", "clip"])
def test_a_step_while_averages_are_in_is_an_error_that_gives_the_values_back(call):
    net, trainer = make(steps=1)
    average, before = averaged(net), freeze(exact(net))
    calls = {"step": lambda: trainer.step(1), "unscale": trainer.unscale, "clip": lambda: trainer.clip_global_norm(1.0)}
    with pytest.raises(TrainerError, match=r"was called within `averaged.swapped_in\(\)`"), average.swapped_in():
        with average.swapped_in():
            pass
        accumulate(net, trainer)
        calls[call]()
    assert trainer.optimizer.num_update == 1 and freeze(exact(net)) == before
    trainer.discard_grads()
    assert step(net, trainer)


@pytest.mark.filterwarnings("ignore")
def test_weights_that_a_trainer_of_mxnet_updates_are_averaged_as_they_are():
    """Nobody has masters of them: those of the conversion are of before the first step."""
    net, _ = make()
    average = averaged(net, 0)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0, "multi_precision": True})
    with mx.autograd.record():
        loss = net(X).sum()
    loss.backward()
    trainer.step(1)
    average.update()
    for name, each in net.collect_params().items():
        expected = each.list_data()[0].asnumpy().astype(np.float32)
        np.testing.assert_allclose(average.values[name].asnumpy(), expected, rtol=2**-10)
    assert np.abs(average.values[net[2].bias.name].asnumpy()).max() == 8


def test_the_exact_value_of_a_parameter_is_a_copy_of_its_master_on_every_context():
    weight = make(steps=1, ctx=TWO)[0][0].weight
    value, other = (exact_value(weight, ctx) for ctx in TWO)
    assert weight.dtype == np.float16 and value.dtype == np.float32
    assert np.any(value.asnumpy() != weight.data(TWO[0]).asnumpy()) and freeze(value) == freeze(other)
    value[:] = 7
    assert np.all(exact_value(weight).asnumpy() != 7)


@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
@pytest.mark.parametrize("steps", [0, 1, 9, 12])
def test_a_write_past_a_master_raises_in_the_first_ten_steps_and_is_undone_later(steps, clip):
    net, trainer = make(lr=0.0)
    weight = net[0].weight
    for _ in range(steps):
        step(net, trainer, clip)
    before = exact_value(weight).asnumpy()
    weight.data()[0] = 0.25
    if steps == 0:  # there is no master of the trainer's yet
        assert step(net, trainer, clip) and np.all(weight.data().asnumpy()[0] == 0.25)
    elif steps < 10:
        with pytest.raises(TrainerError, match=r"parameter '.*dense.*weight' .*mxmp.gluon.adopt_weights\(net\)"):
            step(net, trainer, clip)
        assert weight.data().asnumpy()[0, 0] == 0.25  # nothing was updated
        adopt_weights(net)
        assert step(net, trainer, clip)
        before[0] = 0.25
        assert np.array_equal(exact_value(weight).asnumpy(), before)
        weight.data()[:] = 0.5  # compared ten times more
        with pytest.raises(TrainerError, match="written to past"):
            step(net, trainer, clip)
    else:
        assert step(net, trainer, clip) and np.array_equal(exact_value(weight).asnumpy(), before)


CALLS = {
    "save_parameters": lambda net, trainer, folder: net.save_parameters(str(folder / "net")),
    "save_states": lambda net, trainer, folder: trainer.save_states(str(folder / "states")),
    "export": lambda net, trainer, folder: export(net, str(folder / "net")),
    "convert": lambda net, trainer, folder: convert(net, "O1"),
    "restore": lambda net, trainer, folder: restore(net),
    "averaged": lambda net, trainer, folder: averaged(net),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_reads_exact_values_raises_after_a_write_past_a_master_and_changes_nothing(call, tmp_path):
    net, trainer = make(steps=12)
    net[2].weight.data()[:] = 0.25  # not the first
    params = net.collect_params().values()
    dtypes, output = [p.dtype for p in params], net(X).asnumpy()
    with pytest.raises(TrainerError, match=r"written to past its float32 master.*adopt_weights\(net\)"):
        call(net, trainer, tmp_path)
    assert [p.dtype for p in params] == dtypes and net(X).asnumpy().tolist() == output.tolist()
    assert not list(tmp_path.iterdir())
    adopt_weights(net)
    call(net, trainer, tmp_path)


def test_states_that_are_loaded_in_mid_training_leave_masters_that_fit(tmp_path):
    net, trainer = make(steps=1)
    trainer.save_states(str(tmp_path / "states"))
    for _ in range(11):
        step(net, trainer)
    trainer.load_states(str(tmp_path / "states"))
    exact(net)
    trainer.save_states(str(tmp_path / "states"))
    assert step(net, trainer)
    net[0].weight.data()[:] = 0.25  # compared again
    with pytest.raises(TrainerError, match="written to past its float32 master"):
        step(net, trainer)


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize("policy", ["float32", "O1", "O2"])
def test_a_saved_average_goes_on_in_another_net_as_if_never_stopped(policy, tmp_path):
    net, trainer = make(policy, steps=2)
    average = averaged(net, decay=0.75)
    assert step(net, trainer)
    average.update()
    average.save(tmp_path / "average.params")
    other = averaged(make(policy)[0], decay=0.75)  # parameters of other names
    other.load(tmp_path / "average.params")
    for mine, theirs in zip(other.values.values(), average.values.values()):
        assert mine.dtype == np.float32 and np.array_equal(mine.asnumpy(), theirs.asnumpy())


def test_a_saved_average_is_a_file_of_parameters_for_mxnet(tmp_path):
    net, trainer = make("O2")
    average = averaged(net, decay=0.5)
    assert step(net, trainer)
    average.update()
    average.save(str(tmp_path / "average.params"))
    plain = make("float32")[0]
    restore(plain).load_parameters(str(tmp_path / "average.params"))
    for mine, value in zip(plain.collect_params().values(), average.values.values()):
        assert np.array_equal(mine.data().asnumpy(), value.asnumpy())
    with average.swapped_in():
        net.save_parameters(str(tmp_path / "net.params"))
    average.load(tmp_path / "net.params")
    assert_close(average, {name: value.asnumpy() for name, value in average.values.items()})


def test_what_a_tied_parameter_is_called_does_not_matter(tmp_path):
    net = nn.HybridSequential()
    first = nn.Dense(3, in_units=3)
    net.add(first, nn.Dense(3, in_units=3, params=first.params))
    net.initialize()
    average = averaged(net)
    average.save(tmp_path / "average.params")
    first.weight.set_data(mx.nd.zeros((3, 3)))
    before = {name: value.asnumpy() for name, value in average.values.items()}
    average.update()
    average.load(tmp_path / "average.params")
    assert_close(average, before)


def saved(folder, change):
    """Return the file of an average, with another content."""
    average = averaged(make("O1")[0])
    average.save(folder / "average.params")
    content = change(mx.nd.load(str(folder / "average.params")))
    mx.nd.waitall()  # MXNet writes the shape of sparse values before it waits for them
    mx.nd.save(str(folder / "average.params"), content)
    return average, folder / "average.params"


DAMAGES = {
    "missing": (lambda c: {k: v for k, v in c.items() if k != "0.bias"}, "'0.bias' is missing."),
    "unknown": (lambda c: {**c, "3.bias": c["0.bias"]}, "'3.bias' is unknown."),
    "another shape": (lambda c: {**c, "0.bias": mx.nd.ones(6)}, r"'0.bias' has the shape \(6,\), expected \(5,\)."),
    "sparse": (lambda c: {**c, "0.bias": mx.nd.ones((2, 5)).tostype("row_sparse")}, "'0.bias' is row_sparse, expected a dense"),
    "no names": (lambda c: list(c.values()), "'0' is unknown, '1' is unknown, '2' is unknown and 13 more."),
    "another net": (lambda c: {"weight": c["0.weight"]}, "'weight' is unknown, '0.weight' is missing, '0.bias' is missing"),
}


@pytest.mark.parametrize("change, text", DAMAGES.values(), ids=DAMAGES)
def test_a_file_of_another_net_is_refused_and_changes_nothing(change, text, tmp_path):
    average, file = saved(tmp_path, change)
    average.update()
    before = {name: value.asnumpy() for name, value in average.values.items()}
    with pytest.raises(StateError, match=f"^{file}: its averages are not those of this net: {text}"):
        average.load(file)
    assert all(np.array_equal(value.asnumpy(), before[name]) for name, value in average.values.items())


def test_a_damaged_or_missing_file_is_named(tmp_path):
    average, file = saved(tmp_path, lambda content: content)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match=f"^{file}: .* The file is truncated, damaged"):
        average.load(file)
    with pytest.raises(CheckpointError, match="there is no such file"):
        average.load(tmp_path / "other.params")
    with pytest.raises(CheckpointError, match="^fname is None; expected the path of a file."):
        average.save(None)


def test_averages_go_on_after_the_net_is_float32_again():
    net, _ = make(steps=1)
    averages = averaged(net, decay=0.5)
    restore(net)
    averages.update()
    assert {name: value.asnumpy().tolist() for name, value in averages.values.items()} == {
        name: value.tolist() for name, value in exact(net).items()
    }
