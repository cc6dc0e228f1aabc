"""What a user can check of contrib.amp's and Apex's interfaces, by public names only. docs/behaviours.md lists it."""

import numpy as np
import pytest
from mxnet import autograd, gluon

from mxmp import amp
from mxmp.loss_scale import DynamicLossScale
from tests.perceptron import X, make


@pytest.mark.behaviour(53)
def test_disable_takes_back_what_init_did():
    net = make()
    net.hybridize()
    exact = net(X).asnumpy()
    classes = [dict(vars(kind)) for kind in (gluon.Block, gluon.HybridBlock)]
    amp.init()
    try:
        low = net(X).asnumpy()
    finally:
        amp.disable()
    assert [dict(vars(kind)) for kind in (gluon.Block, gluon.HybridBlock)] == classes
    assert 0 < np.abs(low - exact).max() < 0.02
    np.testing.assert_array_equal(net(X).asnumpy(), exact)


@pytest.mark.behaviour(54)
def test_each_loss_of_apex_has_a_scale_of_its_own():
    net = make()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-3}, kvstore=None)
    amp.initialize(net, trainer, "O1", num_losses=2, loss_scale=DynamicLossScale(init_scale=64))
    for loss_id in (0, 1):
        with autograd.record():
            loss = net(X).sum()
        with amp.scale_loss(loss, trainer, loss_id=loss_id) as scaled:
            scaled.backward()
        if loss_id == 1:
            net[0].weight.grad()[:] = np.inf
        assert trainer.step(4) is (loss_id == 0)
    scales = amp.state_dict(trainer)["loss_scaler0"]["loss_scales"]
    assert [scale["value"] for scale in scales] == [64, 32]


