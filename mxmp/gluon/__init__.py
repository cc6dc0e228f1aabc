"""Mixed precision for Gluon: convert a net in place, and train it."""

from ..names import hooks as _hooks
from ..train.scaler import SharedLossScale as SharedLossScale
from .accumulation import Accumulator as Accumulator
from .api import adopt_weights as adopt_weights
from .api import cast as cast
from .api import convert as convert
from .api import export as export
from .api import report as report
from .api import restore as restore
from .averaged import averaged as averaged
from .averaged import exact_value as exact_value
from .files import load_checkpoint as load_checkpoint
from .files import save_checkpoint as save_checkpoint
from .freeze import freeze as freeze
from .regions import precision as precision
from .regions import set_policy as set_policy
from .trainer import Trainer as Trainer

globals().update(_hooks(__name__))
