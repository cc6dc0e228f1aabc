"""Arrays on a CPU, treated as on each device."""

import pytest


@pytest.fixture(params=["cpu", "gpu"])
def device(request, monkeypatch):
    """Take the way of a device, by operators that a CPU has too."""
    monkeypatch.setattr("mxmp.arrays.on_gpu", lambda _: request.param == "gpu")
    return request.param
