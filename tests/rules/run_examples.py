"""Runs examples through MXNet; as a program, those that the table says run in a low precision, where a kernel may abort.

The program prints two lines of JSON per example: its number, and what it gave::

    python -m tests.rules.run_examples bfloat16
"""

from __future__ import annotations

import json
import sys
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import mxmp  # noqa: F401  # isort: skip  # before MXNet, which needs it on a new numpy or Python
import mxnet as mx
import numpy as np

from mxmp import dtypes
from tests.rules.op_examples import EXAMPLES, Example

Arrays = List[np.ndarray]


def build(example: Example, dtype: str, ports: Optional[Iterable[int]] = None, up: bool = False) -> Any:
    """Return a symbol of one call, with casts in front of its data ports and no others.

    Args:
        example: The call; its inputs are the variables in0, in1, ...
        dtype: What to cast to.
        ports: What to cast, in place of the data ports.
        up: Whether to cast the outputs to float32.
    """
    cast = set(example.data_ports if ports is None else ports) if dtype != dtypes.FLOAT32 else set()
    nodes: List[Dict[str, Any]] = []

    def add(op: str, name: str, inputs: Sequence[List[int]] = (), **attrs: str) -> List[int]:
        nodes.append({"op": op, "name": name, "attrs": attrs, "inputs": list(inputs)})
        return [len(nodes) - 1, 0, 0]

    inputs = [add("null", f"in{port}") for port in range(len(example.shapes))]
    inputs = [add("amp_cast", f"low{i}", [each], dtype=dtype) if i in cast else each for i, each in enumerate(inputs)]
    call, _, _ = add(example.op, "call", inputs, **example.text_attrs)
    heads = [[call, index, 0] for index in range(example.outputs)]
    for index in [index for index in range(example.outputs) if up and index not in example.rule.keep_outputs]:
        heads[index] = add("amp_cast", f"up{index}", [heads[index]], dtype=dtypes.FLOAT32)
    variables = [position for position, node in enumerate(nodes) if node["op"] == "null"]
    graph = {"nodes": nodes, "arg_nodes": variables, "heads": heads, "attrs": {"mxnet_version": ["int", 10901]}}
    return mx.sym.load_json(json.dumps(graph))


def output_dtypes(example: Example, *built: Any, **options: Any) -> List[str]:
    """Return the dtypes of a call's outputs, as MXNet infers them (the arguments are those of ``build``)."""
    known = {f"in{port}": dtype for port, dtype in enumerate(example.dtypes)}
    return [dtypes.canonical(dtype) for dtype in build(example, *built, **options).infer_type(**known)[1]]


class Bound:
    """An example bound in one dtype, to run on several inputs; outputs and gradients are in float32.

    Args:
        example: The call.
        dtype: Dtype of its data.
        backward: Whether to compute the gradients of its data inputs, if it has any.
    """

    def __init__(self, example: Example, dtype: str, backward: bool = True) -> None:
        symbol = build(example, dtype, up=True)
        pairs = enumerate(zip(example.shapes, example.dtypes))
        self.arrays = {f"in{port}": mx.nd.zeros(shape, dtype=kind) for port, (shape, kind) in pairs}
        trained = [f"in{port}" for port in example.data_ports] if backward and example.differentiable else []
        self.gradients = {name: mx.nd.zeros(self.arrays[name].shape) for name in trained}
        self.executor = symbol.bind(
            mx.cpu(),
            {name: self.arrays[name] for name in symbol.list_arguments()},
            self.gradients,
            {name: "write" if name in trained else "null" for name in symbol.list_arguments()},
            {name: self.arrays[name] for name in symbol.list_auxiliary_states()},
        )

    def run(self, arrays: Sequence[np.ndarray], head: Callable[[np.ndarray], np.ndarray]) -> Tuple[Arrays, Arrays]:
        """Return outputs and gradients; ``head`` gives the gradient of an output."""
        for port, array in enumerate(arrays):
            mx.nd.array(array, dtype=array.dtype).copyto(self.arrays[f"in{port}"])
        outputs = self.executor.forward(is_train=True)
        results = [output.asnumpy() for output in outputs]
        if self.gradients:
            self.executor.backward([mx.nd.array(head(result), dtype=result.dtype) for result in results])
        return results, [gradient.asnumpy() for gradient in self.gradients.values()]


def run(example: Example, dtype: str, arrays: Sequence[np.ndarray], backward: bool = True) -> Tuple[Arrays, Arrays]:
    """Return a call's outputs and the gradients of its data inputs, if it has any, in float32."""
    return Bound(example, dtype, backward).run(arrays, _gradient)


def _gradient(result: np.ndarray) -> np.ndarray:
    """Return an output gradient that float16 and bfloat16 have too."""
    return np.random.default_rng(1).integers(-64, 65, result.shape) / 64


def relative_errors(found: Arrays, expected: Arrays) -> List[float]:
    """Return each array's largest error, relative to the largest value expected."""
    assert [a.shape for a in found] == [b.shape for b in expected]
    pairs = zip(found, expected)
    return [float(np.abs(a.astype(np.float64) - b).max() / (np.abs(b).max() or 1)) for a, b in pairs]


def _compare(example: Example, dtype: str) -> Dict[str, Any]:
    arrays = example.arrays()
    expected = run(example, dtypes.FLOAT32, arrays)
    try:
        found = run(example, dtype, arrays)
    except mx.MXNetError as e:
        return {"error": str(e).strip().splitlines()[-1]}
    return {name: relative_errors(a, b) for name, a, b in zip(("outputs", "gradients"), found, expected)}


def chosen(dtype: str) -> List[int]:
    """Return the numbers of the examples that have a dtype."""
    candidates = [n for n, example in enumerate(EXAMPLES) if example.data_ports and example.runs]
    return [n for n in candidates if dtype in EXAMPLES[n].rule.dtypes]


if __name__ == "__main__":
    for number in chosen(sys.argv[1]):
        print(number, flush=True)
        print(json.dumps(_compare(EXAMPLES[number], sys.argv[1])), flush=True)
