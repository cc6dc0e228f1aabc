"""Internal: passes over a graph: decide (classify, place), edit (insert, fold, erase casts), emulate."""

from .base import Pass as Pass
from .base import Sequential as Sequential
from .base import is_converted as is_converted
from .casts import EraseCasts as EraseCasts
from .casts import InsertCasts as InsertCasts
from .dataflow import classify as classify
from .decide import Decision as Decision
from .emulate import Emulate as Emulate
from .facts import Facts as Facts
from .fold import DropDropout as DropDropout
from .fold import FoldBatchNorm as FoldBatchNorm
from .place import place as place
from .plan import make_plan as make_plan
from .scale_loss import ScaleLoss as ScaleLoss
