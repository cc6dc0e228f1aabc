"""Whether a policy is within a tolerance: what counts as that, what is measured once; and the policies that are tried."""

import itertools
import math

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import mxmp
from mxmp.errors import ConvertError, NonFiniteLossError
from mxmp.policy import pattern_of
from mxmp.tune import search
from mxmp.tune.accuracy import Tolerance, with_names
from tests.processors import NO_BFLOAT16
from tests.tune.networks import chain, dense

DATA = mx.nd.ones((2, 4))


def gives(*values, calls=None):
    """Return a function that runs the net and gives one value after the other, the last again and again."""
    waiting, calls = itertools.chain(values, itertools.repeat(values[-1])), [] if calls is None else calls

    def evaluate(net):
        net(DATA)
        calls.append(repr(net))
        return next(waiting)

    return evaluate


@pytest.mark.parametrize(
    "metric, higher, lower",
    [(0.8, True, True), (1.0, True, True), (0.75, False, True), (1.05, True, False)]
    + [(math.nan, False, False), (math.inf, False, False)],
)
def test_as_far_as_the_tolerance_and_any_better_is_allowed(metric, higher, lower):
    for is_higher, expected in ((True, higher), (False, lower)):
        tolerance = Tolerance(dense(), gives(0.9, 0.9, metric), 0.1 + 1e-9, higher_is_better=is_higher)
        assert tolerance.allows("O2") is expected


@pytest.mark.parametrize("value", [1, np.float32(0.5), np.float64(0.5), np.int64(1)])
def test_float32_is_the_reference_and_a_policy_with_the_same_graph_is_not_measured_again(value):
    """Of the net as it was written, though it is converted."""
    net, calls = dense(), []
    mxmp.gluon.convert(net, "O2")
    tolerance = Tolerance(net, gives(value, calls=calls), 0.0)
    assert len(calls) == 2 and all("float16" not in call for call in calls)
    assert tolerance.metric("float32") == tolerance.reference == float(value) and tolerance.evaluations == 2
    assert tolerance.knows("O0") and tolerance.allows("O0")
    for policy in ("O2", "O2", "O2,loss_scale=8", mxmp.Policy.parse("O2"), "O2,name:net_dense0_fwd=float16"):
        assert tolerance.allows(policy) and tolerance.knows(policy)
    assert len(calls) == tolerance.evaluations == 3
    assert not tolerance.knows("O2,name:net_dense0_fwd=float32")
    tolerance.metric("O2,name:net_dense0_fwd=float32")
    assert tolerance.evaluations == 4


def test_a_loss_that_is_not_finite_in_low_precision_is_out_of_tolerance():
    """What a trainer in ``evaluate`` raises of it; in float32 that is passed on."""

    def evaluate(net):
        if net(DATA * 1e6).max().asscalar() == np.inf:
            raise NonFiniteLossError("the loss itself is NaN or inf")
        return 1.0

    net = chain("net_", lambda: [nn.Dense(3, in_units=4)], mx.init.One())
    tolerance = Tolerance(net, evaluate, 0.1)
    assert math.isnan(tolerance.metric("O2")) and not tolerance.allows("O2")
    net[0].weight.set_data(mx.nd.ones((3, 4)) * 1e38)
    with pytest.raises(NonFiniteLossError):
        Tolerance(net, evaluate, 0.1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: Tolerance(dense(), gives(1.0), 0.1).allows("mixed_bfloat16"),
        lambda: search(dense(), gives(1.0), 0.1, "mixed_bfloat16"),
    ],
)
def test_bfloat16_is_refused_where_mxnet_runs_none(ask, on_processor):
    on_processor(NO_BFLOAT16)
    with pytest.raises(ConvertError, match="policy: it computes in bfloat16, and MXNet runs none on this processor"):
        ask()


NAMES = ["fc", "fc[1]", "a*b", "why?", "a,b", "a=b", " padded ", "[", "x]y", "a[!b]c", "tab\t"]


@pytest.mark.parametrize("name", NAMES)
def test_a_pattern_matches_its_name_alone_unless_it_cannot_be_written(name):
    policy = mxmp.Policy.parse(str(with_names(mxmp.Policy.parse("O2"), [pattern_of(name)])))
    assert policy.override("Convolution", name)[0] == "float32"
    others = {other for other in [*NAMES, "fcc", "fc1", "aab", "whyy", "abc"] if policy.override("", other)} - {name}
    assert not others or any(character in name for character in ",= ") or name != name.strip()


def test_names_are_added_to_those_of_the_policy():
    kept = with_names(mxmp.Policy.parse("O2,name:a=float16,op:softmax=float16"), ["b"])
    assert kept == mxmp.Policy.parse("O2,name:a=float16,name:b=float32,op:softmax=float16")
