"""Several machines: a kvstore that sums gradients over workers without losing them."""

from .engines import Engine as Engine
from .engines import Horovod as Horovod
from .engines import ParameterServer as ParameterServer
from .kvstore import KVStore as KVStore
from .kvstore import distributed as distributed
