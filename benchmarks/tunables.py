"""What the tuning benchmark tunes: networks that are built anew under any policy, each time with the same names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, Optional, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import mxmp
import symbols
from benchmarks.common import first_line
from benchmarks.comparison import FAILS, NO_BFLOAT16
from benchmarks.requirements import TRAINING
from benchmarks.tasks import Case, Task, make_task
from mxmp import Policy, dtypes
from mxmp.errors import MxmpError
from mxmp.tune import TuneResult, tune

SSD, SSD_NETWORK = "ssd", "ssd512_resnet50"
SSD_SIZE, SSD_BATCH, OBJECTS = 256, 2, 4
NETWORKS = ["resnet20", "resnet18_v1", "resnet50_v1", "mobilenet1.0", "mobilenetv2_1.0", "lstm", "bert_mini", SSD]

WARMUP = 2

Run = Callable[[], None]
"""Does one forward pass, or one forward and backward, and waits for it."""


class Tunable(ABC):
    """A network with a batch.

    Args:
        name: Of `NETWORKS`.
        batch_size: Examples; 0 for the network's usual number.
        seed: For values.
    """

    def __init__(self, name: str, batch_size: int = 0, seed: int = 0) -> None:
        self.name, self.batch_size, self.seed = name, batch_size, seed

    @abstractmethod
    def tune(self, objective: str, policy: str, seconds: float) -> TuneResult:
        """Return what the tuner finds."""

    @abstractmethod
    def build(self, objective: str, policy: Optional[Policy]) -> Run:
        """Build the network as a user would, under a policy; None is MXNet alone."""


class GluonNetwork(Tunable):
    """A Gluon net of the training benchmark."""

    def tune(self, objective: str, policy: str, seconds: float) -> TuneResult:
        """Return what the tuner finds."""
        task = self._task()
        forward = lambda net, batch: net(*batch)  # noqa: E731
        return tune(task.net, [task.inputs], policy, objective, seconds=seconds, forward=forward, progress=False)

    def build(self, objective: str, policy: Optional[Policy]) -> Run:
        """Build the net and convert it."""
        task = self._task()
        if policy is not None:
            mxmp.gluon.convert(task.net, policy)
        loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

        def train() -> None:
            with autograd.record():
                outputs = task.net(*task.inputs)
                loss = loss_of(outputs[0] if isinstance(outputs, (list, tuple)) else outputs, task.labels)
            loss.backward()
            mx.nd.waitall()

        def infer() -> None:
            task.net(*task.inputs)
            mx.nd.waitall()

        return train if objective == TRAINING else infer

    def _case(self) -> Union[str, Case]:
        return self.name

    def _task(self) -> Task:
        with mx.name.NameManager():  # counts names from 0 on
            task = make_task(self._case(), self.batch_size, self.seed)
        task.net.hybridize(static_alloc=True, static_shape=True)
        return task


class Ssd(Tunable):
    """SSD on ResNet-50, a symbol in a Module."""

    def tune(self, objective: str, policy: str, seconds: float) -> TuneResult:
        """Return what the tuner finds."""
        module = self._module(objective, None)
        batch = {name: value for name, value in self._batch().items() if name in module.symbol.list_arguments()}
        return tune(module, [batch], policy, objective, seconds=seconds, progress=False)

    def build(self, objective: str, policy: Optional[Policy]) -> Run:
        """Bind the symbol in a Module."""
        module = self._module(objective, policy)
        values = self._batch()
        labels = [values["label"]] if objective == TRAINING else []
        batch = mx.io.DataBatch([values["data"]], labels)

        def run() -> None:
            module.forward(batch, is_train=objective == TRAINING)
            if objective == TRAINING:
                module.backward()
            mx.nd.waitall()

        return run

    def _module(self, objective: str, policy: Optional[Policy]) -> Any:
        training = objective == TRAINING
        with mx.name.NameManager():
            symbol = symbols.get_symbol(SSD_NETWORK, train=training)
        labels = ["label"] if training else []
        if policy is None:
            module = mx.mod.Module(symbol, label_names=labels)
        else:
            module = mxmp.module.Module(symbol, label_names=labels, policy=policy, loss_scale=None)
        shapes = {name: value.shape for name, value in self._batch().items()}
        module.bind([("data", shapes["data"])], [("label", shapes["label"])] if training else None, training)
        mx.random.seed(self.seed)
        module.init_params(mx.init.Xavier())
        return module

    def _batch(self) -> Dict[str, mx.nd.NDArray]:
        rng, size = np.random.RandomState(self.seed), self.batch_size or SSD_BATCH
        corners = rng.uniform(0, 0.5, (size, OBJECTS, 2))
        objects = np.concatenate([rng.randint(0, 20, (size, OBJECTS, 1)), corners, corners + 0.4], axis=2)
        images = rng.normal(size=(size, 3, SSD_SIZE, SSD_SIZE))
        return {"data": mx.nd.array(images), "label": mx.nd.array(objects)}


def make_tunable(name: str, batch_size: int = 0, seed: int = 0) -> Tunable:
    """Return a network by its name."""
    return Ssd(name, batch_size, seed) if name == SSD else GluonNetwork(name, batch_size, seed)


def start(tunable: Tunable, objective: str, policy: Optional[Policy], bfloat16: bool) -> Tuple[Optional[Run], str]:
    """Return a run that is warm, or why there is none; ``bfloat16`` is whether MXNet runs that here."""
    if policy is not None and policy.compute_dtype == dtypes.BFLOAT16 and not bfloat16:
        return None, NO_BFLOAT16
    try:
        run = tunable.build(objective, policy)
        for _ in range(WARMUP):
            run()
        return run, ""
    except (mx.MXNetError, MxmpError) as e:
        return None, f"{FAILS}{first_line(e)}"
