from __future__ import annotations

from types import SimpleNamespace

import mxnet as mx
import pytest

from mxmp.arrays import on_gpu


@pytest.mark.parametrize(
    ("context", "expected"), [(mx.gpu(1), True), (mx.cpu(0), False), (mx.cpu_pinned(), False)], ids=str
)
def test_on_gpu_asks_for_the_context_alone(context, expected):
    assert on_gpu(SimpleNamespace(ctx=context)) is expected
