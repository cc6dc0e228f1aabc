"""Arrays on a CPU, treated as on each device."""

import pytest

from mxmp import arrays


@pytest.fixture(params=["cpu", "gpu"])
def device(request, monkeypatch):
    """Take the way of a device, by operators that a CPU has too."""
    monkeypatch.setattr(arrays, "on_gpu", lambda _: request.param == "gpu")
    return request.param
