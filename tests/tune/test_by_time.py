"""tune, as users call it."""

from __future__ import annotations

import mxnet as mx
import pytest
from mxnet.gluon import nn

from mxmp import tune as package
from mxmp.devices.speed import runs_bfloat16
from mxmp.errors import PolicyError, TuneError
from mxmp.gluon import convert
from mxmp.policy import Policy
from mxmp.tune import Tolerance, tune
from mxmp.tune.by_time import tune as _tune
from mxmp.tune.holds import digest
from mxmp.tune.speed.gluon_net import GluonWorkload
from mxmp.tune.speed.plan_search import NotRunnable
from mxmp.tune.speed.problem import NetworkProblem
from tests.tune.networks import energy


def make_net():
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.Conv2D(16, 3, in_channels=3), nn.BatchNorm(in_channels=16), nn.Activation("relu"), nn.Dense(5))
    net.initialize()
    return net


@pytest.fixture
def batches():
    return [(mx.nd.random.uniform(shape=(2, 3, 16, 16)), mx.nd.zeros(2))]


@pytest.fixture
def without_bfloat16(monkeypatch):
    monkeypatch.setattr("mxmp.tune.by_time.runs_bfloat16", lambda: False)


@pytest.mark.parametrize("objective", ["training", "inference"])
def test_a_processor_without_bfloat16_gets_float32_and_is_told(batches, objective, without_bfloat16):
    result = tune(make_net(), batches, objective=objective, seconds=1, progress=False)
    assert result.policy == Policy()
    assert result.fastest == "float32"
    assert result.speedup == 1
    assert result.seconds["float32"] > 0
    assert "MXNet runs no bfloat16 on this processor" in result.notes[0]


@pytest.mark.bfloat16
@pytest.mark.parametrize(
    "options, casts", [({}, True), ({"for_inference": True}, False), ({"param_dtype": "bfloat16"}, False)]
)
def test_a_model_whose_parameters_are_cast_at_each_call_is_told_of(options, casts):
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    model = symbol, {"fc_weight": mx.nd.ones((2, 3)), "fc_bias": mx.nd.zeros(2)}, {}
    result = tune(model, [{"data": mx.nd.ones((4, 3))}], objective="inference", seconds=1, progress=False, **options)
    assert any(note.startswith("Parameters were kept in float32 and cast at each call") for note in result.notes) == casts


@pytest.mark.bfloat16
@pytest.mark.parametrize("objective", ["training", "inference"])
def test_what_is_returned_converts_the_net(batches, objective):
    assert runs_bfloat16()
    net = make_net()
    result = tune(net, batches, objective=objective, seconds=5, progress=False)
    assert {"float32", "untuned"} <= set(result.seconds)
    assert result.seconds[result.fastest] == min(result.seconds[name] for name in (result.fastest, "float32"))
    convert(net, result.policy)
    assert net(batches[0][0]).shape == (2, 5)


def test_float16_on_a_cpu_is_refused(batches):
    with pytest.raises(TuneError, match="policy: it computes in float16, which is emulated on a CPU"):
        tune(make_net(), batches, "O1")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"policy": "float32"}, PolicyError, "is float32 already; give one with a low precision to tune"),
        ({"policy": "01"}, PolicyError, "unknown policy '01'"),
        ({"objective": "speed"}, TuneError, "objective is 'speed'; expected 'training' or 'inference'"),
        ({"seconds": 0}, TuneError, "seconds is 0; expected a positive number"),
        ({"seconds": "60"}, TuneError, "seconds is '60'; expected a positive number"),
        ({"seconds": float("nan")}, TuneError, "seconds is nan; expected a positive number"),
        ({"for_inference": True}, TuneError, "for_inference=True needs objective='inference'"),
        ({"within": 0.02}, TuneError, "within is a float; expected a mxmp.tune.Tolerance"),
        ({"store": 3}, TuneError, "store is a int; expected the name of a file"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(options, error, message):
    with pytest.raises(error, match=message):
        tune(None, None, **options)


@pytest.mark.parametrize("overrides", [{"names": {"typo*": "float32"}}, {"ops": {"Typo": "float32"}}])
def test_a_pattern_that_matches_nothing_is_named(overrides, batches, without_bfloat16):
    with pytest.raises(PolicyError, match="[Tt]ypo"):
        tune(make_net(), batches, progress=False, **overrides)


def test_noise_is_not_spoken_of_where_the_policy_does_not_run(batches, without_bfloat16, monkeypatch):
    monkeypatch.setattr("mxmp.tune.by_time.NOISY", -1.0)
    assert len(tune(make_net(), batches, progress=False).notes) == 1


def test_a_network_that_does_not_run_says_so(batches, without_bfloat16):
    net = make_net()
    net.add(nn.Dense(2, in_units=7))
    net[-1].initialize()
    with pytest.raises(mx.MXNetError, match="Shape inconsistent"):
        tune(net, batches, progress=False)


def test_a_network_that_does_not_train_says_so(batches, without_bfloat16, monkeypatch):
    def build(problem, choice):
        raise NotRunnable("no gradient")

    monkeypatch.setattr(NetworkProblem, "build", build)
    with pytest.raises(TuneError, match="net_or_model: it does not run in float32: no gradient"):
        tune(make_net(), batches, progress=False)


def test_what_it_holds_for_is_said(batches, without_bfloat16):
    result = tune(make_net(), batches, seconds=1, progress=False)
    assert result.holds_for.shapes == {"data": (2, 3, 16, 16)}
    assert mx.__version__ in str(result.holds_for)


def test_the_package_gives_the_function():
    assert package.tune is _tune


class Unrestrained(GluonWorkload):
    """A net whose emulated float16 is taken for the real one."""

    on_cpu = property(lambda self: False, lambda self, value: None)


def test_only_what_is_within_the_tolerance_is_returned(monkeypatch):
    """Squares overflow under O2: whatever is faster, they stay in float32."""
    task = energy()
    data = mx.nd.ones((64, 8))
    monkeypatch.setattr(
        "mxmp.tune.by_time.make_workload", lambda net, batches, *rest: Unrestrained(net, data, False)
    )
    within = Tolerance(task.net, task.evaluate, 0.01)
    assert not within.allows("O2")
    result = tune(task.net, [data], "O2", objective="inference", seconds=3, within=within, progress=False)
    assert within.allows(result.policy)
    assert within.allows(result.untuned)
    assert result.untuned.names  # what the search keeps in float32


def described(prefix, units=3):
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(units, in_units=4))
    net.initialize()
    return net


def test_a_tolerance_of_another_network_is_refused(without_bfloat16):
    data, net = mx.nd.ones((2, 4)), described("net_")
    within = Tolerance(net, lambda net: net(data).sum().asscalar().item(), 0.1)
    for other in (described("other_"), described("net_", units=5)):
        with pytest.raises(TuneError) as caught:
            tune(other, [data], within=within, progress=False)
        ours, theirs = (digest([each(mx.sym.var("data"))]) for each in (other, net))
        assert str(caught.value) == (
            f"within: it measures another network ({theirs}, expected {ours}): other operators or names. Make the "
            f"Tolerance of the network that is tuned."
        )
    for same in (net, described("net_")):
        assert tune(same, [data], within=within, progress=False).policy == Policy()


def test_a_tolerance_of_an_unfolded_network_is_refused_for_a_folded_one(without_bfloat16):
    symbol, batch = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc"), {"data": mx.nd.ones((2, 3))}
    model = symbol, {"fc_weight": mx.nd.ones((2, 3)), "fc_bias": mx.nd.zeros(2)}, {}
    options = {"objective": "inference", "for_inference": True, "progress": False}
    within = Tolerance(model, lambda candidate: 1.0, 0.1, batches=[batch])
    with pytest.raises(TuneError, match="within: it measures the network with for_inference=False, but it is tuned with"):
        tune(model, [batch], within=within, **options)
    folded = Tolerance(model, lambda candidate: 1.0, 0.1, batches=[batch], for_inference=True)
    assert tune(model, [batch], within=folded, **options).policy == Policy()


@pytest.mark.parametrize("kind", ["model", "module"])
def test_tolerances_of_symbols_know_theirs(kind, without_bfloat16):
    batch = {"data": mx.nd.ones((2, 4))}

    def made(name):
        module = mx.mod.Module(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name=name), label_names=[])
        module.bind([("data", (2, 4))])
        module.init_params()
        return (module.symbol, *module.get_params()) if kind == "model" else module

    within = Tolerance(made("fc"), lambda candidate: 1.0, 0.1, batches=[batch])
    assert tune(made("fc"), [batch], within=within, progress=False).policy == Policy()
    with pytest.raises(TuneError, match="within: it measures another network"):
        tune(made("other"), [batch], within=within, progress=False)


def test_a_net_of_several_graphs_says_that_they_run_apart(without_bfloat16):
    net = nn.Sequential(prefix="net_")
    net.add(described("first_", units=4), described("second_"))
    notes = tune(net, [mx.nd.ones((2, 4))], seconds=1, progress=False).notes
    assert notes[1].startswith("The net has 2 graphs. Each runs by itself, once, on what it was called with first;")
    assert len(tune(described("net_"), [mx.nd.ones((2, 4))], seconds=1, progress=False).notes) == 1
