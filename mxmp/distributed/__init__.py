"""Several machines: a kvstore that sums gradients over workers without losing them."""

from ..launch.saving import saves_on_interrupt as saves_on_interrupt
from .engines import Engine as Engine
from .engines import Horovod as Horovod
from .engines import ParameterServer as ParameterServer
from .kvstore import KVStore as KVStore
from .kvstore import distributed as distributed
