"""Internal: passes over a graph: decide (classify, place), edit (insert, fold, erase casts), emulate."""

from .base import Pass as Pass
from .base import Sequential as Sequential
from .base import is_converted as is_converted
from .casts import EraseCasts as EraseCasts
from .casts import InsertCasts as InsertCasts
from .cpu.guards import GuardAmpCasts as GuardAmpCasts
from .cpu.guards import GuardBranches as GuardBranches
from .cpu.guards import GuardFusedSums as GuardFusedSums
from .cpu.guards import GuardGradientSums as GuardGradientSums
from .cpu.guards import GuardLayouts as GuardLayouts
from .cpu.guards import GuardPRelu as GuardPRelu
from .cpu.guards import GuardSlices as GuardSlices
from .cpu.guards import OrderFusedSums as OrderFusedSums
from .cpu.layouts import Layouts as Layouts
from .cpu.layouts import SeparateLayouts as SeparateLayouts
from .cpu.slow_kernels import WidenSlowKernels as WidenSlowKernels
from .dataflow import classify as classify
from .decide import Decision as Decision
from .emulate import Emulate as Emulate
from .facts import Facts as Facts
from .fold import DropDropout as DropDropout
from .fold import FoldBatchNorm as FoldBatchNorm
from .place import place as place
from .plan import make_plan as make_plan
from .scale_loss import ScaleLoss as ScaleLoss
