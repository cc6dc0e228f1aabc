"""Float32 masters, finite checks and saved states for MXNet's optimizers."""

from ..arrays import all_finite as all_finite
from ..train.masters import MultiPrecision as MultiPrecision
from .loss_scale_optimizer import LossScaleOptimizer as LossScaleOptimizer
