"""The private names of MXNet that mxmp touches, each under a name of ours: nothing else in mxmp names one.

Each stands on one line with what it is relied on for. Importing this package checks that all are there. What is read
of any object is a function (``blocks.cached_graph(net)``, and ``blocks.cached_graph.set`` to write it); for classes
that inherit from MXNet's there is a base class, such as `trainers.TrainerBase`, in which MXNet's ``_params`` is
``mx_params``, and MXNet's call of ``_init_kvstore`` arrives in ``mx_init_kvstore``.

Internal: it can change with any version of mxmp.
"""

from . import arrays, blocks, modules, optimizers, parameters, trainers  # noqa: F401  # they register their names
from .names import check

check()
