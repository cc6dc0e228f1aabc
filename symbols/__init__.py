"""Networks of the mixed precision literature, each ``get_symbol(num_classes, **kwargs)``.

Every network is float32 and imports MXNet alone; ``get_symbol`` here builds one by name and, for
another dtype, converts it::

    >>> resnet = get_symbol("resnet50_v1b", num_classes=10, dtype="float16")
    >>> resnet.list_outputs()
    ['softmax_output']

A file of this package that has a ``get_symbol`` is a network, known by the name of the file. Its
``NETWORKS``, if it has any, are further names, each with the arguments that it stands for.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any, Dict, NamedTuple, Optional

from mxmp import dtypes
from mxmp.errors import DtypeError
from mxmp.symbol import convert_symbol

_POLICIES = {dtypes.FLOAT32: None, dtypes.FLOAT16: "mixed_float16", dtypes.BFLOAT16: "mixed_bfloat16"}


class Network(NamedTuple):
    """What a name stands for.

    Attributes:
        module: The file with the network's ``get_symbol``.
        fixed: Arguments of it that the name fixes: ``vgg16`` is ``vgg`` with ``num_layers=16``.
    """

    module: ModuleType
    fixed: Dict[str, Any]


def _find_networks() -> Dict[str, Network]:
    found: Dict[str, Network] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "get_symbol"):
            found[info.name] = Network(module, {})
            found.update((name, Network(module, fixed)) for name, fixed in getattr(module, "NETWORKS", {}).items())
    return found


NETWORKS = _find_networks()
"""Every name that ``get_symbol`` knows."""


def get_symbol(name: str, num_classes: Optional[int] = None, dtype: str = "float32", **kwargs: Any) -> Any:
    """Return the symbol of a network, converted to mixed precision if a dtype asks for it.

    Args:
        name: A key of ``NETWORKS``, such as ``resnet50_v1b``, or ``resnet`` with ``num_layers=50``.
        num_classes: Number of classes; the network's own default if None.
        dtype: ``float32`` for the network as it is written; ``float16`` or ``bfloat16`` for the
            same network in mixed precision: parameters and outputs stay float32, and so do products in
            batches (the transformer's ``batch_dot``), whose length is not known here; ``convert_symbol`` with
            shapes has them in low precision where they are short.
        **kwargs: Further arguments of the network's own ``get_symbol``.

    Raises:
        ValueError: If the name, the dtype or an argument is unknown; the message names the known.
    """
    network = _find(name)
    policy = _policy(dtype)
    if num_classes is not None:
        kwargs["num_classes"] = num_classes
    _check_arguments(name, network, kwargs)
    symbol = network.module.get_symbol(**network.fixed, **kwargs)
    return symbol if policy is None else convert_symbol(symbol, policy)


def _find(name: str) -> Network:
    if isinstance(name, str) and name in NETWORKS:
        return NETWORKS[name]
    near = difflib.get_close_matches(name, NETWORKS, n=3) if isinstance(name, str) else []
    hint = f"; the nearest are {', '.join(near)}" if near else ""
    files = ", ".join(sorted({_file(network) for network in NETWORKS.values()}))
    raise ValueError(f"unknown network {name!r}{hint}. The networks are {files}; symbols.NETWORKS has every name.")


def _policy(dtype: str) -> Optional[str]:
    try:
        return _POLICIES[dtypes.canonical(dtype)]
    except (DtypeError, KeyError):
        raise ValueError(f"dtype={dtype!r}: expected one of {', '.join(_POLICIES)}.") from None


def _check_arguments(name: str, network: Network, kwargs: Dict[str, Any]) -> None:
    known = inspect.signature(network.module.get_symbol).parameters
    for argument in kwargs:
        if argument in network.fixed:
            raise ValueError(
                f"{name}: the name already says {argument}={network.fixed[argument]!r}; leave {argument} out, or give "
                f"it to {_file(network)!r}."
            )
        if argument not in known:
            free = ", ".join(argument for argument in known if argument not in network.fixed)
            raise ValueError(f"{name} has no argument {argument!r}; it takes {free}.")


def _file(network: Network) -> str:
    return network.module.__name__.rpartition(".")[2]
