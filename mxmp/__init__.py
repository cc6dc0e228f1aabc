"""Mixed precision for Apache MXNet 1.9.1.

One engine rewrites the graph of one network; Gluon and the Symbolic API are its fronts.
MXNet itself is left as it is.

Example:
    >>> from mxnet.gluon import nn
    >>> import mxmp
    >>> net = nn.Dense(10, in_units=4)
    >>> net.initialize()
    >>> net = mxmp.gluon.convert(net, "mixed_bfloat16")  # the same net, same parameters
"""

from . import requirements

__version__ = "0.1.0"

requirements.check()  # before the first import of MXNet, whose own error names neither cause nor cure

from . import amp as amp  # noqa: E402
from . import diagnose as diagnose  # noqa: E402
from . import distributed as distributed  # noqa: E402
from . import errors as errors  # noqa: E402
from . import estimator as estimator  # noqa: E402
from . import gluon as gluon  # noqa: E402
from . import loss_scale as loss_scale  # noqa: E402
from . import module as module  # noqa: E402
from . import onnx as onnx  # noqa: E402
from . import optimizer as optimizer  # noqa: E402
from . import symbol as symbol  # noqa: E402
from .amp import initialize as initialize  # noqa: E402
from .policy import Policy as Policy  # noqa: E402
