"""Mixed precision for Apache MXNet 1.9.1.

One engine rewrites the graph of one network; Gluon and the Symbolic API are its fronts.
MXNet itself is left as it is, but for one thing: on an Intel processor that has AMX, importing mxmp lets MXNet use it,
as MXNet's own import ends. ``MXMP_AMX=0`` in the environment keeps AMX off, and `enable_amx` then switches it on.

A part is imported when it is first used, so that the command line can answer without MXNet, which takes
seconds to import.

Example:
    >>> import mxmp
    >>> from mxnet.gluon import nn
    >>> net = nn.Dense(10, in_units=4)
    >>> net.initialize()
    >>> net = mxmp.gluon.convert(net, "mixed_bfloat16")  # the same net, same parameters
"""

from __future__ import annotations

from . import compat, explainer, processors, requirements

TYPE_CHECKING = False  # what type checkers take for typing's, which costs more to import than all else here
if TYPE_CHECKING:
    from . import amp as amp
    from . import diagnose as diagnose
    from . import distributed as distributed
    from . import errors as errors
    from . import estimator as estimator
    from . import gluon as gluon
    from . import launch as launch
    from . import loss_scale as loss_scale
    from . import module as module
    from . import onnx as onnx
    from . import optimizer as optimizer
    from . import symbol as symbol
    from . import tune as tune
    from .amp import initialize as initialize
    from .devices.amx import enable_amx as enable_amx
    from .policy import Policy as Policy

__version__ = "0.1.0"

# Before the first import of MXNet, whose own error names neither cause nor cure, and which on a newer numpy or Python
# needs the views; not those for an MXNet that is refused.
requirements.check()
compat.install()

if processors.read_cpuinfo().has_amx:
    from .devices import amx as _amx

    if not _amx.is_kept_off():
        compat.after_import(_amx.switch_on_at_import)


def _watch() -> object:
    """Return what explains a step that fails."""
    from .diagnose import watch

    return watch


explainer.register(_watch)

__all__ = [
    "Policy",
    "amp",
    "diagnose",
    "distributed",
    "enable_amx",
    "errors",
    "estimator",
    "gluon",
    "initialize",
    "launch",
    "loss_scale",
    "module",
    "onnx",
    "optimizer",
    "symbol",
    "tune",
]
_HOMES = {"Policy": "policy", "enable_amx": "devices.amx", "initialize": "amp"}  # of the names that are no modules

if not TYPE_CHECKING:  # a type checker would take any name for one that is there

    def __getattr__(name):
        """Import a part of the package when it is first asked for (PEP 562)."""
        from importlib import import_module
        from importlib.util import find_spec

        if name in _HOMES:
            globals()[name] = value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
            return value
        if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
            from .names import unknown

            raise unknown(__name__, name)
        return import_module(f"{__name__}.{name}")

    def __dir__():
        return sorted([*__all__, "__version__"])
