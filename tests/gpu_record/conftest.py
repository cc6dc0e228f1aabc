"""The recorder of a test run, and which worker runs what."""

import os

import pytest

from tests.gpu_record.runs import Recorder, Step

collect_ignore = ["programs"]  # they import MXNet, and run under the recorder alone


@pytest.fixture(scope="session", autouse=True)
def _same_speed_everywhere():
    """Leave alone what the fixture of this name is for elsewhere: here MXNet runs in processes of its own alone."""


@pytest.fixture(scope="session", autouse=True)
def _one_rounding_everywhere():
    """Likewise: emulation is of CPUs."""


@pytest.fixture(scope="session")
def recorder(tmp_path_factory):
    """What runs programs; all workers of a test run share its folder."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "gpu_record"
    folder.mkdir(exist_ok=True)
    return Recorder(folder)


@pytest.fixture
def record(recorder):
    """The function that returns the record of a step."""
    return recorder.step


def pytest_collection_modifyitems(items):
    """Put tests of one network into one group: with ``--dist loadgroup`` one worker runs them."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        step = callspec and callspec.params.get("step")
        if isinstance(step, Step):
            item.add_marker(pytest.mark.xdist_group(f"{step.front} {step.network}"))
