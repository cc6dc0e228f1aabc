"""Loss scales as immutable values: none, static, dynamic.

A loss scale multiplies the loss, so that small gradients survive a format with few exponent bits, and divides the
gradients again before the update. The classes here only hold numbers and decide which scale comes next; the trainer
multiplies the loss and skips the step.

References:
    Micikevicius et al., "Mixed Precision Training", 2017, section 3.2, https://arxiv.org/abs/1710.03740
"""

from .base import LARGEST_SCALE as LARGEST_SCALE
from .base import SMALLEST_SCALE as SMALLEST_SCALE
from .base import LossScale as LossScale
from .base import NoOpLossScale as NoOpLossScale
from .base import StaticLossScale as StaticLossScale
from .dynamic import AT_FLOOR as AT_FLOOR
from .dynamic import DynamicLossScale as DynamicLossScale
from .parsing import parse as parse
