"""What a user can check of devices, by public names only. docs/behaviours.md lists it."""

import pytest

import mxmp


@pytest.mark.behaviour(35)
def test_float16_on_a_cpu_is_said_to_be_emulated():
    (finding,) = (each for each in mxmp.diagnose.check_devices("O1") if "CPU" in each.subject.upper())
    assert finding.ok is False and "emulate" in finding.message
