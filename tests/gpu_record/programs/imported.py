"""Runs an exported net in plain MXNet: ``python -m tests.gpu_record.programs.imported SYMBOL PARAMS FACTS``.

With `Module`'s symbol too: the files are imported as a block and bound as a symbol. Nothing of mxmp that imports MXNet
is imported, which the facts tell.
"""

from __future__ import annotations

import json
import sys

import mxnet as mx

from tools.gpu_record import control

SHAPE = (8, 3, 32, 32)


def main(symbol_file: str, params_file: str, facts_path: str) -> None:
    """Run the block and the symbol once each."""
    images = mx.nd.ones(SHAPE, ctx=mx.gpu(0))
    block = mx.gluon.SymbolBlock.imports(symbol_file, ["data"], params_file, ctx=mx.gpu(0))
    mx.nd.waitall()
    control.mark("block")
    output = block(images)
    mx.nd.waitall()
    symbol = mx.sym.load(symbol_file)
    values = {name.split(":", 1)[1]: value.as_in_context(mx.gpu(0)) for name, value in mx.nd.load(params_file).items()}
    args = {name: values.get(name, images) for name in symbol.list_arguments()}
    aux = {name: values[name] for name in symbol.list_auxiliary_states()}
    mx.nd.waitall()
    control.mark("symbol")
    bound = symbol.bind(mx.gpu(0), args, aux_states=aux, grad_req="null").forward(is_train=False)[0]
    mx.nd.waitall()
    control.mark("end")
    facts = {"dtypes": [out.dtype.__name__ for out in (output, bound)], "shapes": [output.shape, bound.shape]}
    facts["loaded"] = [name for name in sys.modules if name.startswith("mxmp.")]
    with open(facts_path, "w", encoding="utf-8") as file:
        json.dump(facts, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
