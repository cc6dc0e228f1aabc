"""Private names of Gluon's Estimator, whose import takes longer than all else of MXNet here."""

from __future__ import annotations

from mxnet.gluon.contrib.estimator import BatchProcessor

from . import check, method, named

split_batch = method(BatchProcessor, "_get_data_and_label", "splits a batch over the contexts")


@named({}, {"split_batch": ("_get_data_and_label", "splits a batch over the contexts")})
class BatchProcessorBase(BatchProcessor):
    """A batch processor whose private method, which ``fit_batch`` calls, can be overridden."""


check()
