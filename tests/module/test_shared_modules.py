"""Modules that are bound with ``shared_module``: how long they live, and their loss scale."""

import gc
import inspect
import sys
import weakref

from mxmp.module import Module
from mxmp.train.step import Observer
from tests.module.tools import SHAPES, batches, mlp, ready, train


def sharing(module, **options):
    """Return a module that shares the parameters of another."""
    other = Module(mlp(), **options)
    other.bind(*SHAPES, shared_module=module)
    return other


def test_a_module_that_shares_parameters_is_freed_with_its_last_reference():
    module = ready()
    other = train(sharing(module), batches()[:1])
    left, other = weakref.ref(other), None
    gc.collect()
    assert left() is None


def test_the_scale_is_set_and_loaded_however_many_modules_were_bound_with_it(tmp_path):
    module, limit = ready(), sys.getrecursionlimit()
    for _ in range(200):
        sharing(module)
    fname = str(tmp_path / "states")
    module.save_optimizer_states(fname)
    sys.setrecursionlimit(len(inspect.stack()) + 150)  # 200 modules are to it as 1,000 to the default
    try:
        module.loss_scale = 64
        module.load_optimizer_states(fname)
    finally:
        sys.setrecursionlimit(limit)


class Ends(Observer):
    def __init__(self):
        self.ends = []

    def on_end(self, end):
        self.ends.append(end)


def test_an_observer_of_a_module_hears_its_steps_when_it_is_bound_to_share_later():
    module, other, ends = ready(), Module(mlp()), Ends()
    ends.attach(other)
    other.bind(*SHAPES, shared_module=module)
    train(other, batches()[:1])
    assert len(ends.ends) == 1
