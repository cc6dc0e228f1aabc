"""Mixed precision for the Symbolic API: Module and BucketingModule with a policy and a loss scale."""

from ..names import hooks as _hooks
from .bucketing import BucketingModule as BucketingModule
from .module import Module as Module

globals().update(_hooks(__name__))
