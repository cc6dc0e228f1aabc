"""Casts inside fused operators: MXNet writes their CUDA source, in which each value has a name of its own.

Such a kernel loads every input as float32, computes in it, and rounds at the end to the output's dtype. A ``Cast``
stands in the source as ``op::cast<float16>(x)``; an ``amp_cast`` as ``op::identity(x)``, which shows only where
the output's dtype is not that of what is stored. What can't be told: an amp_cast whose effect is undone in the kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Counter as CounterOf
from typing import Dict, Iterable

from .kernel_names import SIZES

_NAMES = {
    **{"half": "float16", "float": "float32", "double": "float64"},
    **{"char": "int8", "unsigned char": "uint8", "int": "int32", "long long": "int64"},
}
_ARRAY = re.compile(r"^using DType_(\w+) = ([\w ]+);", re.M)
_ASSIGNED = re.compile(r"^(?:const )?(?:auto )?(temp\d+) \+?= (.*);", re.M)
_LOADED = re.compile(r"op::load\(vec_(\w+?)\.x\[j\]\)")
_CAST = re.compile(r"op::cast<([\w ]+)>\((temp\d+)\)")
_STORED = re.compile(r"op::store\((temp\d+), (\w+)\)")
_VALUE = re.compile(r"\btemp\d+\b")


def fused_casts(source: str) -> CounterOf[str]:
    """Return how many values a fused operator casts, by ``float16->float32``."""
    arrays = {name: _NAMES.get(dtype, dtype) for name, dtype in _ARRAY.findall(source)}
    body = source[source.rfind("__global__") :]
    dtypes: Dict[str, str] = {}
    casts: CounterOf[str] = Counter()
    for name, expression in _ASSIGNED.findall(body):
        cast = _CAST.fullmatch(expression)
        if cast:
            dtypes[name] = _NAMES.get(cast.group(1), cast.group(1))
            _count(casts, dtypes.get(cast.group(2)), dtypes[name])
        else:
            loaded = _LOADED.findall(expression)
            known = [_array_dtype(vector, arrays) for vector in loaded]
            known += [dtypes[value] for value in _VALUE.findall(expression) if value in dtypes]
            dtypes[name] = _widest(known)
    for value, output in _STORED.findall(body):
        _count(casts, dtypes.get(value), arrays.get(output))
    return casts


def _count(casts: CounterOf[str], source: object, target: object) -> None:
    if source and target and source != target:
        casts[f"{source}->{target}"] += 1


def _array_dtype(vector: str, arrays: Dict[str, str]) -> str:
    """Return the dtype of the array that a vector is loaded from; slices of one carry a number behind its name."""
    while vector and vector not in arrays:
        vector = vector.rpartition("_")[0]
    return arrays.get(vector, "")


def _widest(dtypes: Iterable[str]) -> str:
    return max(dtypes, key=lambda dtype: (dtype.startswith(("float", "bfloat")), SIZES.get(dtype, 0)), default="")
