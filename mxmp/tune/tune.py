"""tune: the fastest policy for a network on this machine."""

from __future__ import annotations

import time
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple, Union

import mxnet as mx
from mxnet import gluon

from .. import dtypes
from ..devices.bfloat16 import runs_bfloat16
from ..devices.speed_file import describe_machine
from ..errors import TuneError
from ..policy import Policy
from .choices import Choice
from .gluon_net import Forward, GluonNet
from .model import ModelNet
from .plan_search import Found, PlanSearch
from .problem import NetworkProblem, Workload
from .progress import showing_progress
from .race import NOISY
from .result import INFERENCE, OBJECTIVES, TRAINING, Measured, TuneResult
