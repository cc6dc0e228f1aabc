"""A trainer updates by itself, never on the kvstore; and what it gives its kvstore."""

import numpy as np
import pytest

from mxmp.distributed import KVStore
from mxmp.errors import TrainerError
from mxmp.gluon import Trainer
from tests.distributed.engines import Second
from tests.gluon.trainer_tools import TWO, param, run, trained, value


def sparse():
    return param(np.ones((3, 2)), stype="row_sparse", grad_stype="row_sparse")


ON_KVSTORE = {"update_on_kvstore": True}
UNCHECKED = " updates weights inside the all-reduce, before .*: {}; or train float32 parameters with mx.gluon.Trainer"
SPARSE = "parameter 'w' is row_sparse, so that its kvstore" + UNCHECKED.format("make it with stype='default'.*")
CHOSEN = "update_on_kvstore=True" + UNCHECKED.format("leave update_on_kvstore out")
ASYNCHRONOUS = "kvstore 'dist_async'" + UNCHECKED.format("take a synchronous kvstore")
REFUSED = {
    "a dynamic scale": (TWO, ON_KVSTORE, CHOSEN),
    "a static scale": (TWO, {**ON_KVSTORE, "loss_scale": 8}, CHOSEN),
    "no scale": (TWO, {**ON_KVSTORE, "loss_scale": None}, CHOSEN),
    "asynchronous": (None, {"kvstore": "dist_async"}, ASYNCHRONOUS),
    "asynchronous, no scale": (None, {"kvstore": "dist_async", "loss_scale": None}, ASYNCHRONOUS),
    "row_sparse": (sparse, {}, SPARSE),
    "row_sparse, no scale": (sparse, {"loss_scale": None}, SPARSE),
}


@pytest.mark.parametrize("where, options, message", REFUSED.values(), ids=REFUSED)
def test_a_trainer_is_refused_and_leaves_parameters_alone(where, options, message):
    w = where() if callable(where) else param([1.0], ctx=where)
    with pytest.raises(TrainerError, match=message):
        Trainer([w], **{"optimizer": "sgd", **options})
    assert w._trainer is None


class Exact(Second):
    """The second worker of one whose float32 value float16 has not."""

    def broadcast(self, key, array):
        super().broadcast(key, array)
        array[:] = 5 + 2.0**-12


def test_a_worker_without_masters_keeps_worker_0s():
    """Or weights that round alike would go different ways."""
    w, trainer = trained(param([1.0], "float16"), 1.0, kvstore=KVStore(Exact()))
    assert run(trainer, w, 0) and value(w.data()) == 5
    assert next(trainer.master_params()).asscalar() == 5 + 2.0**-12
