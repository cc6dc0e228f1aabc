"""The recorder of tools/gpu_record, built for an MXNet that needs a few of its functions."""

import pytest

from tests.tools import fake_mxnet
from tools.gpu_record.build import build


@pytest.fixture(scope="session")
def libmxnet(tmp_path_factory):
    return fake_mxnet.make(tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="session")
def recorder(libmxnet, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorder") / "new"
    build(libmxnet, folder)
    return folder
