"""The precision policy: one immutable value that says which operators and parameters have which dtype.

A policy parses from a string and prints back to one that parses to the same value::

    >>> str(Policy.parse("mixed_float16"))
    'param=float32,compute=float16,output=float32,loss_scale=dynamic'

References:
    jmp (https://github.com/deepmind/jmp) for param, compute and output dtype in one value;
    NVIDIA Apex (https://nvidia.github.io/apex/amp.html) for O0 to O3 and their properties;
    Keras (https://keras.io/api/mixed_precision/policy) for the names of its policies.
"""

from ..errors import did_you_mean as did_you_mean
from .fields import PRESETS as PRESETS
from .policy import Policy as Policy
from .policy import check_matches as check_matches
from .policy import only_matching as only_matching
