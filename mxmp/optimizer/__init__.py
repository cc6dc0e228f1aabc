"""Float32 masters, finite checks and saved states for MXNet's optimizers."""

from .finite import all_finite as all_finite
from .loss_scale_optimizer import LossScaleOptimizer as LossScaleOptimizer
from .multi_precision import MultiPrecision as MultiPrecision
