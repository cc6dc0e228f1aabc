"""Which example calls of the rules are recorded, and what MXNet refuses of them in float32 too."""

from __future__ import annotations

from typing import Dict, List

from tests.rules.op_examples import EXAMPLES

PARTS = 2
"""Processes that share the calls of a dtype."""

NO_GPU_KERNEL = "MXNet has no kernel for GPUs, and dereferences a null pointer"

ENDS_THE_PROCESS: Dict[str, str] = {
    "khatri_rao(num_args=2)": NO_GPU_KERNEL,
    "_contrib_BatchNormWithReLU(fix_gamma=False)": NO_GPU_KERNEL,
    "_contrib_RROIAlign(pooled_size=(2,2),spatial_scale=1.0)": NO_GPU_KERNEL,
    "LeakyReLU(act_type=rrelu)": "its random numbers are not asked for as a resource on GPUs: what it reads is undefined",
}
"""Calls that end MXNet's process in float32 too, and why; the last may do anything."""

FAILS: Dict[str, str] = {
    "_npi_arctan2_scalar(scalar=2.0)": "its gradient is declared for two inputs",
    "_npi_rarctan2_scalar(scalar=2.0)": "its gradient is declared for two inputs",
    "LeakyReLU()": "pointwise fusion looks up act_type among the attributes that are written out",
}
"""Calls that MXNet fails to run in float32 too, and why."""

READS_COUNTS = ("_contrib_boolean_mask()",)
"""Calls that allocate as many rows as they read from the GPU, where nothing was computed: they cannot be recorded."""


def chosen(dtype: str) -> List[int]:
    """Return the numbers of the examples that are called with data in a dtype: all, or those whose rule has it."""
    return [
        number
        for number, example in enumerate(EXAMPLES)
        if example.data_ports and (dtype == "float32" or dtype in example.rule.dtypes)
        if str(example) not in (*ENDS_THE_PROCESS, *READS_COUNTS)
    ]


def named(call: str) -> int:
    """Return the number of an example by its text."""
    return next(number for number, example in enumerate(EXAMPLES) if str(example) == call)
