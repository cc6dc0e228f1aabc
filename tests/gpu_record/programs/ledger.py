"""Steps with a ledger and without: ``python -m tests.gpu_record.programs.ledger NET MODE FACTS``."""

from __future__ import annotations

import sys

import mxmp  # noqa: F401  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx

from mxmp.diagnose import Ledger
from tests.gpu_record.programs.common import compare_in, sections, write
from tests.gpu_record.programs.gluon_step import convert, make_trainer, step
from tests.gpu_record.programs.nets import CTX, NETS
from tools.gpu_record import control


def main(name: str, mode: str, facts_path: str) -> None:
    """Run steps of each kind, and write the sizes of the gradients: elements and bytes of all, and how many."""
    control.deliver(1.0)
    case = NETS[name]()
    case.net.initialize(ctx=CTX)
    case.net.hybridize(static_alloc=True, static_shape=True)
    convert(case.net, mode)
    inputs = [mx.nd.ones(shape, ctx=CTX) for shape in case.shapes]
    trainer, scaled = make_trainer(case.net, mode, "sgd")
    compare_in(2)

    def run(kind: str) -> None:
        begin = sections(kind)
        step(case, inputs, trainer, scaled, begin)
        sections("after")(kind)

    for kind in ("warm up", "warm up", "without"):
        run(kind)
    ledger = Ledger(every=2).attach(trainer)
    for _ in range(2):
        run("warm up")  # the first sample compiles its kernel
    for kind in ("sample", "between"):
        run(kind)
    grads = [p.grad() for p in case.net.collect_params().values() if p.grad_req != "null"]
    sizes = {"arrays": len(grads), "elements": sum(grad.size for grad in grads)}
    dtypes = sorted({grad.dtype.__name__ for grad in grads})
    write(facts_path, {**sizes, "dtypes": dtypes, "sampled": ledger.sampled, "steps": ledger.steps})


if __name__ == "__main__":
    main(*sys.argv[1:])
