"""Internal: passes over a graph: decide (classify, place), edit (insert, fold, erase casts), emulate."""

from .attributes import is_converted as is_converted
from .base import Pass as Pass
from .base import Sequential as Sequential
from .casts import EraseCasts as EraseCasts
from .casts import InsertCasts as InsertCasts
from .classify import classify as classify
from .drop_dropout import DropDropout as DropDropout
from .emulate import Emulate as Emulate
from .facts import Facts as Facts
from .fold_batchnorm import FoldBatchNorm as FoldBatchNorm
from .guard_fusion import GuardFusedSums as GuardFusedSums
from .guards import GuardAmpCasts as GuardAmpCasts
from .guards import GuardBranches as GuardBranches
from .guards import GuardGradientSums as GuardGradientSums
from .guards import GuardInPlace as GuardInPlace
from .guards import GuardLayouts as GuardLayouts
from .layouts import Layouts as Layouts
from .layouts import SeparateLayouts as SeparateLayouts
from .place import place as place
from .plan import make_plan as make_plan
from .scale_loss import ScaleLoss as ScaleLoss
from .slow_kernels import WidenSlowKernels as WidenSlowKernels
from .store_params import StoreParams as StoreParams
from .verdict import Verdict as Verdict
