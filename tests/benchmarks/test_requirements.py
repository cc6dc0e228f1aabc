"""The verdicts on what is to be reached."""

from __future__ import annotations

import pytest

from benchmarks import requirements
from benchmarks.common import AMX, AVX512, AVX512_BF16
from benchmarks.requirements import MET, NOISY, NOT_HERE, NOT_MET
from tests.benchmarks.columns import SCATTERED, compared

NETWORKS = ["resnet50_v1", "mobilenet1.0"]


def verdicts(found, unit=AMX, networks=NETWORKS, dtype="bfloat16"):
    return {check.what: check for check in requirements.inference(found, networks, unit, dtype)}


def test_requirements_of_amx_are_met():
    found = verdicts({name: compared(own=0.4, peer=0.41) for name in NETWORKS})
    amx = {what: check for what, check in found.items() if what.startswith("AMX")}
    assert len(amx) == 8 and {check.verdict for check in amx.values()} == {MET}
    assert amx["AMX, gluon: ResNet-50 against float32"].found == pytest.approx(2.5)
    assert {check.verdict for what, check in found.items() if what.startswith("AVX512")} == {NOT_HERE}


@pytest.mark.parametrize(
    "resnet, mobilenet, failing",
    [
        ({"own": 0.45}, {"own": 0.4}, "ResNet-50 against float32"),
        ({"own": 0.41}, {"own": 0.7}, "geometric mean against float32"),
        ({"own": 0.4, "peer": 0.35}, {"own": 0.4}, "each network against contrib.amp's best"),
        ({"own": 0.2}, {"own": 1.05}, "each network against float32"),
    ],
)
def test_each_requirement_can_fail_by_itself(resnet, mobilenet, failing):
    found = verdicts(dict(zip(NETWORKS, (compared(**resnet), compared(**mobilenet)))))
    missed = {what for what, check in found.items() if check.verdict == NOT_MET}
    assert missed == {f"AMX, {front}: {failing}" for front in ("symbolic", "gluon")}


@pytest.mark.parametrize("seconds, verdict", [(1 / 1.76, MET), (1 / 1.74, NOT_MET)])
def test_a_processor_without_amx_has_its_own_requirement(seconds, verdict):
    found = verdicts({"resnet50_v1": compared(own=seconds)}, unit=AVX512_BF16)
    ours = [check.verdict for what, check in found.items() if what.startswith("AVX512")]
    assert ours == [verdict, verdict]
    assert {check.verdict for what, check in found.items() if what.startswith("AMX")} == {NOT_HERE}


def test_gluon_may_be_five_percent_behind():
    what = "each network in bfloat16: mxmp's best, Gluon against symbolic"
    for gluon, verdict in ((0.52, MET), (0.53, NOT_MET)):
        assert verdicts({"resnet50_v1": compared(own=0.5, gluon=gluon)})[what].verdict == verdict


@pytest.mark.parametrize("unit, why", [("", "no bfloat16"), (AVX512, "AVX-512, emulated")])
def test_bfloat16_is_not_measurable_where_it_does_not_run(unit, why):
    found = verdicts({name: compared(own="does not run") for name in NETWORKS}, unit=unit)
    low = [check for what, check in found.items() if what.startswith(("AMX", "AVX512"))]
    assert {check.verdict for check in low} == {NOT_HERE} and all(why in str(check) for check in low)


def test_float32_is_compared_between_the_fronts_everywhere():
    found = verdicts({name: compared(own="does not run") for name in NETWORKS}, unit="")
    assert found["each network in float32: mxmp's best, Gluon against symbolic"].verdict == MET
    assert found["each network in bfloat16: mxmp's best, Gluon against symbolic"].verdict == NOT_HERE


def test_other_policies_say_nothing_of_bfloat16():
    found = verdicts({name: compared(own=0.1, dtype="float16") for name in NETWORKS}, dtype="float16")
    check = found["AMX, gluon: ResNet-50 against float32"]
    assert check.verdict == NOT_HERE and "float16" in check.why


def test_a_mean_wants_all_networks():
    check = verdicts({"resnet50_v1": compared(own=0.1)})["AMX, gluon: geometric mean against float32"]
    assert check.verdict == NOT_HERE and check.why == "not measured: mobilenet1.0"
    check = verdicts({"mobilenet1.0": compared(own=0.1)})["AMX, gluon: ResNet-50 against float32"]
    assert check.verdict == NOT_HERE and check.why == "not measured: resnet50_v1"


def test_noise_is_told():
    found = verdicts({name: compared(own=0.1, rounds=SCATTERED) for name in NETWORKS})
    check = found["AMX, gluon: ResNet-50 against float32"]
    assert check.verdict == NOISY and "10.0" in str(check)


def test_a_form_that_fails_where_it_should_run_does_not_meet_anything():
    found = verdicts({"resnet50_v1": compared(own=0.1), "mobilenet1.0": compared(own="fails: no reorder")})
    check = found["AMX, gluon: each network against float32"]
    assert check.verdict == NOT_MET and check.why == "did not run: mobilenet1.0"
    assert found["AMX, gluon: ResNet-50 against float32"].verdict == MET


def test_training_wants_emulation_and_bfloat16_not_too_slow():
    found = {"resnet20": compared(own=1.4, dtype="float16"), "resnet18_v1": compared(own=1.6, dtype="float16")}
    small, large, low = requirements.training(found, "")
    assert (small.verdict, large.verdict, low.verdict) == (MET, NOT_MET, NOT_HERE)
    (*_, low) = requirements.training({"bert": compared(own=1.2)}, AMX)
    assert low.verdict == NOT_MET and low.found == pytest.approx(1 / 1.2)
    (*_, low) = requirements.training({"bert": compared(own=1.1)}, AVX512_BF16)
    assert low.verdict == MET
