"""Reading, writing and finding by index."""

from __future__ import annotations

from .core import MAP, Example

STEPS, LENGTHS = (5, 2, 8), {1: "length"}
BY_LENGTH = {"use_sequence_length": True}
SPARSE = {"input_dim": 5, "output_dim": 8, "sparse_grad": True}
ROWS = (
    Example("Embedding", ((2, 3), (5, 8)), {"input_dim": 5, "output_dim": 8}, {0: "index"}),
    Example("Embedding", ((2, 3), (5, 8)), SPARSE, {0: "index"}, differentiable=False),  # into dense arrays
    Example("take", ((5, 8), (2, 3)), {}, {1: "index"}),
    Example("take", ((4, 5, 3), (2,)), {"axis": 1}, {1: "index"}),
    Example("gather_nd", ((5, 8), (1, 3)), {}, {1: "index"}),
    Example("pick", ((5, 8), (5,)), {}, {1: "index"}),
    Example("SequenceMask", (STEPS, (2,)), {**BY_LENGTH, "value": -2.0}, LENGTHS),
    Example("SequenceMask", (STEPS,)),
    Example("SequenceReverse", (STEPS, (2,)), BY_LENGTH, LENGTHS),
    Example("SequenceReverse", (STEPS,)),
    Example("SequenceLast", (STEPS, (2,)), BY_LENGTH, LENGTHS),
    Example("where", (MAP, MAP, MAP), {}, {0: "index"}),
    Example("where", ((2,), MAP, MAP), {}, {0: "index"}),
    Example("batch_take", ((5, 8), (5,)), {}, {1: "int32"}, differentiable=False),
    Example("_contrib_boolean_mask", ((5, 8), (5,)), {}, {1: "index"}),
    Example("scatter_nd", ((3,), (1, 3)), {"shape": (5,)}, {1: "distinct index"}),
    Example("_scatter_set_nd", ((5,), (3,), (1, 3)), {"shape": (5,)}, {2: "distinct index"}, differentiable=False),
    Example("_contrib_index_copy", ((5, 8), (3,), (3, 8)), {}, {1: "distinct index"}),
    Example("_npi_boolean_mask_assign_scalar", ((5, 8), (5, 8)), {"value": 0.5, "start_axis": 0}, {1: "bool"}),
    Example("_npi_boolean_mask_assign_tensor", ((5, 8), (5, 8), (1,)), {"start_axis": 0}, {1: "bool"}),
    Example("_npi_delete", ((5, 8),), {"int_ind": 1, "axis": 0}, differentiable=False),
    Example("_npi_delete", ((5, 8), (2,)), {"axis": 0}, {1: "int64"}, differentiable=False),
    Example("_npi_insert_scalar", ((5, 8), (1,)), {"int_ind": 1, "axis": 0}, differentiable=False),
    Example(
        "_npi_insert_slice", ((5, 8), (1,)), {"start": 1, "stop": 3, "step": 1, "axis": 0}, differentiable=False
    ),
    Example("_npi_insert_tensor", ((5, 8), (1,), (2,)), {"axis": 0}, {2: "int64"}, differentiable=False),
    Example("_npx_nonzero", ((4, 5),), {}, {}, 1, False),
    Example("_npi_unique", ((4,),), {"return_counts": True}, {}, 2, False),
)
