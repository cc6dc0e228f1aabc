"""Bytes on the GPU between and within steps: ``python -m tests.gpu_record.programs.memory MODE OPTIMIZER FACTS``.

Run it with MXNET_GPU_MEM_POOL_TYPE=Unpooled: MXNet's pool would keep what is freed.
"""

from __future__ import annotations

import gc
import sys
from typing import Any, Dict, List

import mxmp  # noqa: F401  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx
import numpy as np
from mxnet.contrib import amp as contrib_amp

from tests.gpu_record.programs.common import compare_in, write
from tests.gpu_record.programs.gluon_step import convert, make_trainer, step
from tests.gpu_record.programs.nets import CTX, NETS
from tools.gpu_record import control


def main(mode: str, optimizer: str, facts_path: str) -> None:
    """Train ResNet-50, and write which bytes are in use after each stage, and the sizes of the parameters."""
    used: Dict[str, int] = {}

    def note(stage: str) -> None:
        gc.collect()
        mx.nd.waitall()
        free, total = mx.context.gpu_memory_info(0)
        used[stage] = total - free
        control.mark(stage)

    control.deliver(1.0)
    compare_in(0)
    note("start")
    if mode == "contrib_amp":
        contrib_amp.init()
    case = NETS["resnet50"]()
    case.net.initialize(ctx=CTX)
    case.net.hybridize()
    convert(case.net, mode)
    inputs = [mx.nd.ones(shape, ctx=CTX, dtype="float16" if mode == "net_cast" else "float32") for shape in case.shapes]
    case.net(*inputs)
    note("called")
    trainer, scaled = make_trainer(case.net, mode, optimizer)
    for number in range(3):
        step(case, inputs, trainer, scaled, lambda phase, number=number: note(f"{number} {phase}"))
        note(f"{number} done")
    inputs_bytes = sum(array.size * np.dtype(array.dtype).itemsize for array in inputs)
    write(facts_path, {"used": used, "inputs": inputs_bytes, "parameters": sizes(case.net)})


def sizes(net: Any) -> List[Any]:
    """Return for each parameter its dtype, elements, and whether it is trained."""
    found = net.collect_params().values()
    return [(np.dtype(p.data().dtype).name, p.data().size, p.grad_req != "null") for p in found]


if __name__ == "__main__":
    main(*sys.argv[1:])
