"""Example calls of the rules: ``python -m tests.gpu_record.programs.rules DTYPE NUMBER[,NUMBER...] FACTS``.

Each is called forward and backward with its data in DTYPE. The facts say which gave what error. What ends the process
is the last number that it prints.
"""

from __future__ import annotations

import sys
from typing import Dict

import mxmp  # noqa: F401  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx
import numpy as np

from tests.gpu_record.programs.common import write
from tests.rules.op_examples import EXAMPLES, Example
from tests.rules.run_examples import build
from tools.gpu_record import control

CTX = mx.gpu(0)


def main(dtype: str, numbers: str, facts_path: str) -> None:
    """Call the examples, and write the errors by number."""
    control.deliver(1.0)
    errors: Dict[str, str] = {}
    for number in map(int, numbers.split(",")):
        print(number, EXAMPLES[number], flush=True)
        try:
            call(EXAMPLES[number], dtype, number)
        except mx.MXNetError as error:
            errors[str(number)] = str(error).strip().splitlines()[-1]
    write(facts_path, errors)


def call(example: Example, dtype: str, number: int) -> None:
    """Run an example forward and backward, in sections of its own."""
    arrays = {f"in{port}": mx.nd.array(a, ctx=CTX, dtype=a.dtype) for port, a in enumerate(example.arrays())}
    trained = [f"in{port}" for port in example.data_ports] if example.differentiable else []
    symbol = build(example, dtype, up=True)
    executor = symbol.bind(
        CTX,
        {name: arrays[name] for name in symbol.list_arguments()},
        {name: mx.nd.zeros(arrays[name].shape, ctx=CTX) for name in trained},
        {name: "write" if name in trained else "null" for name in symbol.list_arguments()},
        {name: arrays[name] for name in symbol.list_auxiliary_states()},
    )
    mx.nd.waitall()
    control.mark(f"{number} forward")
    outputs = executor.forward(is_train=True)
    mx.nd.waitall()
    control.mark(f"{number} backward")
    if trained:
        executor.backward([mx.nd.array(np.ones(output.shape), ctx=CTX) for output in outputs])
    mx.nd.waitall()
    control.mark("between")


if __name__ == "__main__":
    main(*sys.argv[1:])
