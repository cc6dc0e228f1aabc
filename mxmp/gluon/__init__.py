"""Mixed precision for Gluon: convert a net in place, and train it."""

from ..scaling.shared import SharedLossScale as SharedLossScale
from .convert import cast as cast
from .convert import convert as convert
from .convert import export as export
from .convert import report as report
from .convert import restore as restore
from .precision import precision as precision
from .regions import set_policy as set_policy
from .trainer import Trainer as Trainer
