"""check_devices on machines that a script in the place of nvidia-smi makes up."""

from __future__ import annotations

import dataclasses
import logging
import time

import mxnet as mx
import pytest

from mxmp.devices import amx, check, speed
from mxmp.devices.check import Finding, Gpu, check_cpu, check_devices, check_gpu, read_gpus
from mxmp.devices.processor import Processor
from mxmp.errors import PolicyError
from tests.devices.libraries import cpu_library, cuda_library
from tests.devices.machines import install, install_cards

CARDS = [
    ("Tesla K80", "3.7"),
    ("GeForce GTX 1080 Ti", "6.1"),
    ("Tesla V100-SXM2-16GB", "7.0"),
    ("GeForce GTX 1660, the 6 GB one", "7.5"),
    ("NVIDIA A100-SXM4-40GB", "8.0"),
    ("NVIDIA GeForce RTX 4090", "8.9"),
    ("NVIDIA H100 80GB HBM3", "9.0"),
    ("NVIDIA GeForce RTX 5090", "12.0"),
]


@pytest.fixture
def fake(tmp_path, monkeypatch):
    return lambda script: install(tmp_path, monkeypatch, script)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return lambda cards: install_cards(tmp_path, monkeypatch, cards)


def test_cards_are_read_in_order(machine):
    machine(CARDS)
    found = read_gpus()
    assert [(gpu.index, gpu.name) for gpu in found] == [(i, name) for i, (name, _) in enumerate(CARDS)]
    assert [f"{gpu.capability[0]}.{gpu.capability[1]}" for gpu in found] == [number for _, number in CARDS]


@pytest.mark.behaviour("a policy on each device")
@pytest.mark.parametrize(
    ("policy", "ok"),
    [
        ("O1", [False, False, True, True, True, True, False, False]),
        ("mixed_bfloat16", [False] * 8),
        ("float32", [False, True, True, True, True, True, False, False]),
    ],
)
def test_check_devices_judges_every_card_and_the_processor(policy, ok, machine, tmp_path):
    machine(CARDS)
    *cards, processor = check_devices(policy, cuda_library(tmp_path))
    assert [finding.ok for finding in cards] == ok
    for index, (finding, (name, _)) in enumerate(zip(cards, CARDS)):
        assert finding.device == f"GPU {index} ({name})"
        assert finding.message.startswith(finding.device)
    assert processor.device.startswith("CPU (")


@pytest.mark.behaviour("a policy on each device")
@pytest.mark.parametrize(
    ("capability", "dtype", "text"),
    [
        (
            (3, 7),
            "float16",
            "capability 3.7: this MXNet cannot run here, in any precision: it has machine code for 5.0, 6.0",
        ),
        ((6, 1), "float16", "capability 6.1: float16 runs without tensor cores, which came with 7.0"),
        ((7, 0), "float16", "capability 7.0: float16 runs on its tensor cores."),
        ((8, 9), "float16", "capability 8.9: float16 runs on its tensor cores."),
        ((9, 0), "float16", "it has machine code for 5.0, 6.0, 7.0, 8.0, 8.6; no PTX."),
        ((9, 0), "float32", "cannot run here, in any precision"),
        ((7, 5), "bfloat16", "bfloat16 does not run: the card has no bfloat16 arithmetic, and MXNet"),
        ((8, 0), "bfloat16", "bfloat16 does not run: the card could, but MXNet 1.9.1 has no bfloat16 kernels for GPUs"),
        ((6, 0), "float32", "float32 runs as ever."),
    ],
)
def test_the_message_names_the_card_and_the_reason(capability, dtype, text):
    message = check_gpu(Gpu(2, "Some Card", capability), dtype).message
    assert message.startswith("GPU 2 (Some Card), compute ") and text in message


@pytest.mark.parametrize(
    ("capability", "dtype", "advice"),
    [
        ((6, 1), "float16", "Take float32 unless memory is short."),
        ((8, 0), "bfloat16", "Take float16."),
        ((9, 0), "float16", "Build MXNet for this card; its released wheels have machine code for 5.0, 6.0"),
        ((8, 6), "float16", ""),
    ],
)
def test_the_advice_is_for_what_does_not_run(capability, dtype, advice):
    found = check_gpu(Gpu(0, "Some Card", capability), dtype)
    assert found.advice.startswith(advice) and bool(found.advice) == bool(advice) == (not found.ok)


def test_a_cpu_build_runs_on_no_card(machine, tmp_path):
    machine([("NVIDIA A100", "8.0"), ("NVIDIA H100", "9.0")])
    ampere, hopper, _ = check_devices("O1", cpu_library(tmp_path))
    assert ampere.ok is hopper.ok is False and "it has no GPU code" in ampere.message
    assert ampere.advice.startswith("Install mxnet-cu112") and hopper.advice.startswith("Build MXNet")


def test_a_library_that_cannot_be_read_counts_as_a_released_one(machine, tmp_path):
    machine([("NVIDIA A100", "8.0")])
    assert check_devices("O1", tmp_path / "libmxnet.dylib")[0].ok


def test_cards_that_mxnet_sees_alone_are_unknown(tmp_path, monkeypatch):
    """As in a container without nvidia-smi."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    *found, _ = check_devices("O1", cuda_library(tmp_path))
    assert [each.device for each in found] == [f"GPU {i} (which nvidia-smi does not list)" for i in range(2)]
    assert all(each.ok is None for each in found)


def test_a_driver_that_fails_is_told(tmp_path, monkeypatch, caplog):
    def fail():
        raise mx.MXNetError("MXNetError: CUDA driver version is insufficient")

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mx.context, "num_gpus", fail)
    assert len(check_devices("O1", cuda_library(tmp_path))) == 1
    assert "MXNet finds no GPU: CUDA driver version is insufficient" in caplog.text


BARE = [
    *("NVIDIA GeForce GTX 1660 Ti", "GeForce GTX 1650", "GeForce GTX 1630", "GeForce MX450", "NVIDIA GeForce MX550"),
    *("NVIDIA T400 4GB", "NVIDIA T500", "NVIDIA T550 Laptop GPU", "NVIDIA T600", "NVIDIA T1000 8GB"),
    *("NVIDIA T1200 Laptop GPU", "Quadro T1000", "Quadro T2000 with Max-Q Design", "NVIDIA CMP 30HX"),
]
FULL = ["Tesla T4", "NVIDIA T4G", "GRID T4-16Q", "GeForce RTX 2060", "Quadro RTX 4000", "NVIDIA TITAN RTX"]


@pytest.mark.parametrize(("name", "tensor_cores"), [*((n, False) for n in BARE), *((n, True) for n in FULL)])
def test_cards_of_7_5_without_tensor_cores_are_told_apart(name, tensor_cores):
    finding = check_gpu(Gpu(0, name, (7, 5)), "float16")
    assert finding.ok and ("on its tensor cores" in finding.message) == tensor_cores
    assert ("no tensor cores" in finding.message) != tensor_cores


def test_a_name_alone_takes_no_tensor_cores_away():
    assert "on its tensor cores" in check_gpu(Gpu(0, "NVIDIA T1000", (8, 6)), "float16").message


def test_a_driver_that_does_not_know_the_field_gives_names_alone(fake):
    fake(
        """
        [ "$fields" = name ] && { echo "Tesla V100-SXM2-16GB"; echo "Tesla P4"; exit 0; }
        echo 'Field "compute_cap" is not a valid field to query.'; exit 2
        """
    )
    assert read_gpus() == [Gpu(0, "Tesla V100-SXM2-16GB", None), Gpu(1, "Tesla P4", None)]
    first, second, _ = check_devices("O2")
    assert first.ok is second.ok is None
    assert "GPU 1 (Tesla P4): its driver does not tell its compute capability" in second.message


@pytest.mark.parametrize("text", ["[N/A]", "[Not Supported]", "", "8", "8.x"])
def test_a_capability_that_is_no_number_is_unknown(text, machine):
    machine([("Card, with a comma", text)])
    assert read_gpus() == [Gpu(0, "Card, with a comma", None)]


@pytest.mark.parametrize(
    "script",
    [
        "echo 'No devices were found'; exit 6",
        "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9",
        "exit 0",
    ],
    ids=["no devices", "no driver", "silent"],
)
def test_a_machine_without_a_working_driver_has_no_gpu(script, fake):
    fake(script)
    assert read_gpus() == []


def test_a_machine_without_nvidia_smi_has_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_gpus() == []
    (finding,) = check_devices("O1")
    assert finding.device.startswith("CPU")


def test_a_program_that_hangs_is_given_up(fake, monkeypatch, caplog):
    monkeypatch.setattr(check, "TIMEOUT", 0.2)
    fake("exec sleep 30")
    start = time.perf_counter()
    with caplog.at_level(logging.WARNING, logger=check.__name__):
        assert read_gpus() == []
    assert time.perf_counter() - start < 10
    assert "nvidia-smi gave no answer within 0.2 s" in caplog.text


def test_a_program_that_does_not_start_is_told(fake, tmp_path, caplog):
    fake("")
    (tmp_path / "nvidia-smi").write_text("#!/no/such/shell\n")
    assert read_gpus() == []
    assert "nvidia-smi does not run" in caplog.text


@pytest.mark.parametrize(
    ("flags", "dtype", "ratio", "ok", "text"),
    [
        ("avx2", "float32", False, True, "CPU (Xeon): float32 runs as ever."),
        ("avx512_bf16", "float16", False, False, "CPU (Xeon): float16 is emulated"),
        ("avx2", "bfloat16", False, False, "does not run on this processor (Xeon)"),
        ("avx512bw", "bfloat16", 0.4, False, "0.40 times as fast as float32 in inference, 0.40 in training"),
        ("avx512bw", "bfloat16", 0.4, False, "on this processor (Xeon: no instructions for bfloat16)."),
        ("avx512bw avx512_bf16", "bfloat16", 1.7, True, "on this processor (Xeon: avx512_bf16)."),
        ("avx512bw avx512_bf16", "bfloat16", 0.7, False, "on this processor (Xeon: avx512_bf16)."),
        ("avx512_bf16 amx_bf16 amx_tile", "bfloat16", 2.0, True, "(Xeon: amx_bf16, avx512_bf16; AMX off)."),
        ("", "bfloat16", 1.5, True, "1.50 times as fast as float32"),
        ("avx512_bf16", "bfloat16", None, None, "bfloat16 is of unknown speed on this processor (Xeon: avx512_bf16)."),
    ],
)
def test_a_processor_runs_what_is_no_slower_than_float32(flags, dtype, ratio, ok, text, monkeypatch):
    """A ratio of None was not measured, one of False is for a processor that runs no bfloat16."""
    monkeypatch.setattr(amx, "amx_status", lambda: amx.AmxStatus(False, "Refused."))
    measured = speed.Speed(speed.Gain(ratio, ratio), speed.Gain(ratio, ratio)) if ratio else None
    finding = check_cpu(Processor("Xeon", frozenset(flags.split())), dtype, ratio is not False, measured)
    assert finding.ok is ok and text in finding.message
    assert bool(finding.advice) == (ok is not True)


@pytest.mark.parametrize(("ratio", "advice"), [(None, "train on a GPU"), (0.7, "train on a GPU"), (1.7, "take mixed_")])
def test_emulated_float16_is_advised_what_is_fast(ratio, advice):
    measured = speed.Speed(speed.Gain(ratio, ratio), speed.Gain(ratio, ratio)) if ratio else None
    finding = check_cpu(Processor("Xeon", frozenset()), "float16", ratio is not None, measured)
    assert finding.ok is False and finding.advice.startswith(f"For speed {advice}")


def test_check_devices_asks_this_processor(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(check, "read_processor", lambda: Processor("Made Up", frozenset(["amx_bf16"])))
    fast = speed.Speed(speed.Gain(2.0, 1.5), speed.Gain(1.0, 1.1))
    for measured, runs, ok in [(fast, True, True), (None, True, None), (None, False, False)]:
        monkeypatch.setattr(speed, "bfloat16_speed", lambda measured=measured: measured)
        monkeypatch.setattr(check, "runs_bfloat16", lambda runs=runs: runs)
        (finding,) = check_devices("mixed_bfloat16")
        assert finding.ok is ok and "Made Up" in finding.message
        assert (str(fast) in finding.message) == (ok is True)


def test_check_devices_measures_nothing_for_float32(monkeypatch):
    monkeypatch.delattr(speed, "bfloat16_speed")
    assert check_devices("float32")[-1].ok


def test_an_unknown_policy_is_named():
    with pytest.raises(PolicyError, match="unknown policy 'O7'"):
        check_devices("O7")


def test_findings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Finding("GPU 0", True, "fine").ok = False
