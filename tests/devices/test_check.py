"""What a policy means on machines that are made up: cards by a script in the place of nvidia-smi, processors by flags."""

import logging

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import mxmp
from mxmp.diagnose import AmxStatus, check_devices
from mxmp.errors import ConvertError, SlowPrecisionWarning
from tests.devices.machines import install, install_cards
from tests.processors import AMD, AMX, EMULATED, INTEL, NO_BFLOAT16, UNKNOWN, processor_of

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
    return lambda cards, cuda=True: install_cards(tmp_path, monkeypatch, cards, cuda)


@pytest.mark.behaviour("a policy on each device")
@pytest.mark.parametrize(
    ("policy", "ok"),
    [
        ("O1", [False, False, True, True, True, True, False, False]),
        ("mixed_bfloat16", [False] * 8),
        ("float32", [False, True, True, True, True, True, False, False]),
    ],
)
def test_check_devices_judges_every_card_and_the_processor(policy, ok, machine):
    machine(CARDS)
    *cards, processor = check_devices(policy)
    assert [finding.ok for finding in cards] == ok
    for index, (finding, (name, _)) in enumerate(zip(cards, CARDS)):
        assert finding.subject == f"GPU {index} ({name})"
        assert finding.message.startswith(finding.subject)
    assert processor.subject.startswith("CPU (")


FLOAT32_ONLY = "Take float32 unless memory is short."
BUILD = "Build MXNet for this card."


@pytest.mark.behaviour("a policy on each device")
@pytest.mark.parametrize(
    ("capability", "policy", "text", "advice"),
    [
        ("3.7", "O1", "no released MXNet 1.9.1 runs here, in any precision: they have machine code for 5.0, 6.0", ""),
        ("6.1", "O1", "float16 runs without tensor cores, which came with 7.0", FLOAT32_ONLY),
        ("7.0", "O1", "float16 runs on its tensor cores.", None),
        ("8.9", "O1", "float16 runs on its tensor cores.", None),
        ("9.0", "O1", "they have machine code for 5.0, 6.0, 7.0, 8.0, 8.6; no PTX.", BUILD),
        ("9.0", "float32", "no released MXNet 1.9.1 runs here, in any precision", BUILD),
        ("7.5", "bfloat16", "bfloat16 does not run: the card has no bfloat16 arithmetic, and MXNet", "Take float16."),
        ("8.0", "bfloat16", "bfloat16 does not run: the card could, but MXNet 1.9.1 has no bfloat16 kernels for GPUs", "Take float16."),
        ("6.0", "float32", "float32 runs as ever.", None),
    ],
)  # fmt: skip
def test_a_finding_names_the_card_the_reason_and_what_to_do_where_it_does_not_run(capability, policy, text, advice, machine):
    machine([("Some Card", capability)])
    found, _ = check_devices(policy)
    assert found.message.startswith(f"GPU 0 (Some Card), compute capability {capability}: ") and text in found.message
    assert found.advice.startswith(advice or "") and bool(found.advice) == (advice is not None) == (not found.ok)


def test_a_cpu_build_runs_on_no_card(machine):
    machine([("NVIDIA A100", "8.0"), ("NVIDIA H100", "9.0")], cuda=False)
    ampere, hopper, _ = check_devices("O1")
    assert ampere.ok is hopper.ok is False and "this MXNet is for CPUs" in ampere.message
    assert ampere.advice.startswith("Install mxnet-cu112") and hopper.advice.startswith("Build MXNet")


def test_cards_that_mxnet_sees_alone_are_unknown(tmp_path, monkeypatch):
    """As in a container without nvidia-smi."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    *found, _ = check_devices("O1")
    assert [each.subject for each in found] == [f"GPU {i} (which nvidia-smi does not list)" for i in range(2)]
    assert all(each.ok is None and "does not tell its compute capability" in each.message for each in found)


def test_a_driver_that_fails_is_told(tmp_path, monkeypatch, caplog):
    def fail():
        raise mx.MXNetError("MXNetError: CUDA driver version is insufficient")

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mx.context, "num_gpus", fail)
    assert len(check_devices("O1")) == 1
    assert "MXNet finds no GPU: CUDA driver version is insufficient" in caplog.text


BARE = [
    *("NVIDIA GeForce GTX 1660 Ti", "GeForce GTX 1650", "GeForce GTX 1630", "GeForce MX450", "NVIDIA GeForce MX550"),
    *("NVIDIA T400 4GB", "NVIDIA T500", "NVIDIA T550 Laptop GPU", "NVIDIA T600", "NVIDIA T1000 8GB"),
    *("NVIDIA T1200 Laptop GPU", "Quadro T1000", "Quadro T2000 with Max-Q Design", "NVIDIA CMP 30HX"),
]
FULL = ["Tesla T4", "NVIDIA T4G", "GRID T4-16Q", "GeForce RTX 2060", "Quadro RTX 4000", "NVIDIA TITAN RTX"]


def test_cards_of_7_5_without_tensor_cores_are_told_apart(machine):
    machine([*((name, "7.5") for name in BARE + FULL), *((name, "8.6") for name in BARE)])  # where all have them
    *cards, _ = check_devices("O1")
    with_tensor_cores = ["on its tensor cores" in card.message for card in cards]
    assert with_tensor_cores == [False] * len(BARE) + [True] * len(FULL) + [True] * len(BARE)
    assert all(card.ok for card in cards) and "no tensor cores" in cards[0].message


@pytest.mark.parametrize(
    "script",
    [
        "echo 'No devices were found'; exit 6",
        "echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2",  # a driver before 510
        "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9",
        "exit 0",
        None,
    ],
    ids=["no devices", "an old driver", "no driver", "silent", "no nvidia-smi"],
)
def test_a_machine_without_a_working_driver_has_no_gpu(script, fake, tmp_path, monkeypatch):
    fake(script) if script else monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = check_devices("O1")
    assert finding.subject.startswith("CPU")


def test_a_program_that_hangs_is_given_up(fake, monkeypatch, caplog):
    monkeypatch.setattr("mxmp.devices.check.TIMEOUT", 0.2)
    fake("exec sleep 30")
    with caplog.at_level(logging.WARNING):
        assert len(check_devices("O1")) == 1
    assert "nvidia-smi does not answer" in caplog.text and "0.2 seconds" in caplog.text


OFF = AmxStatus(False, "ALL is set.", "Unset it.")
XEON = processor_of(AMX, amx=OFF)


@pytest.mark.parametrize(
    ("processor", "policy", "ok", "text", "advice"),
    [
        (NO_BFLOAT16, "float32", True, "float32 runs as ever.", ""),
        (AMD, "O1", False, "float16 is emulated", "For speed take mixed_"),
        (NO_BFLOAT16, "O1", False, "float16 is emulated", "For speed train on a GPU"),
        (NO_BFLOAT16, "bfloat16", False, "bfloat16 does not run, because MXNet needs AVX-512 for it.", "Take float32"),
        (EMULATED, "bfloat16", False, "bfloat16 is slower than float32 on the kind 'AVX-512 that emulates it'", "Take float32."),
        (AMD, "bfloat16", True, "bfloat16 runs in hardware (AVX512-BF16 of AMD); its speed: ", ""),
        (INTEL, "bfloat16", False, "bfloat16 is slower than float32 on the kind 'AVX512-BF16 of Intel without", "Take float32."),
        (XEON, "bfloat16", False, "bfloat16 is slower than float32, as AMX is off: ALL is set.", "Unset it."),
        (AMX, "bfloat16", True, "bfloat16 runs in hardware (AMX)", ""),
        (UNKNOWN, "bfloat16", None, "the speed of bfloat16 is not known, nor the processor's flags.", "`mxmp doctor`"),
    ],
)  # fmt: skip
def test_the_kind_of_a_processor_decides(processor, policy, ok, text, advice, on_processor):
    name = on_processor(processor).name
    *_, finding = check_devices(policy)
    assert finding.ok is ok and f"CPU ({name}): {text}" in finding.message
    assert finding.advice.startswith(advice) and bool(finding.advice) == (ok is not True)


def dense():
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize()
    return net


def bind(policy):
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3), name="softmax")
    module = mxmp.module.Module(symbol, policy=policy)
    module.bind([("data", (2, 4))], [("softmax_label", (2,))])
    return module


def hybrid_block():
    net = dense()
    net.hybridize()
    net(mx.nd.ones((2, 4)))
    mxmp.amp.convert_hybrid_block(net, "bfloat16")


@pytest.mark.filterwarnings("ignore:Cannot decide type:UserWarning")  # MXNet's, of contrib.amp's way
@pytest.mark.parametrize(
    "convert",
    [
        lambda: mxmp.gluon.convert(dense(), "mixed_bfloat16"),
        lambda: mxmp.gluon.cast(dense(), "bfloat16"),
        hybrid_block,
    ],
    ids=["convert", "cast", "amp.convert_hybrid_block"],
)
@pytest.mark.parametrize("kind", [EMULATED, NO_BFLOAT16, INTEL, XEON], ids=lambda kind: kind.name)
def test_a_conversion_warns_where_bfloat16_is_slow_or_does_not_run(kind, convert, on_processor):
    on_processor(kind)
    *_, finding = check_devices("bfloat16")
    with pytest.warns(SlowPrecisionWarning) as found:
        convert()
    (warning,) = [each for each in found if each.category is SlowPrecisionWarning]
    assert str(warning.message) == f"{finding.message} {finding.advice}"
    assert warning.filename == __file__


QUIET = {
    **{f"{policy} without bfloat16": (NO_BFLOAT16, lambda policy=policy: mxmp.gluon.convert(dense(), policy)) for policy in ("O0", "O1", "O2")},
    "bfloat16 of AMD": (AMD, lambda: mxmp.gluon.convert(dense(), "mixed_bfloat16")),
    "AMX": (AMX, lambda: mxmp.gluon.convert(dense(), "mixed_bfloat16")),
    "bfloat16 on the unknown": (UNKNOWN, lambda: mxmp.gluon.convert(dense(), "mixed_bfloat16")),
    "a symbol, which may run anywhere": (
        NO_BFLOAT16,
        lambda: mxmp.symbol.convert_symbol(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3), "mixed_bfloat16"),
    ),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("kind", "convert"), QUIET.values(), ids=QUIET)
def test_nothing_is_said_of_other_precisions_or_of_what_is_fast(kind, convert, on_processor):
    on_processor(kind)
    convert()


@pytest.mark.filterwarnings("error::mxmp.errors.SlowPrecisionWarning")
def test_a_warning_that_is_an_error_leaves_the_net_as_it_was(on_processor):
    on_processor(EMULATED)
    net = dense()
    for convert in (lambda: bind("mixed_bfloat16"), lambda: mxmp.gluon.convert(net, "mixed_bfloat16")):
        with pytest.raises(SlowPrecisionWarning):
            convert()
    assert type(net) is gluon.nn.Dense and net(mx.nd.ones((2, 4))).dtype == np.float32
    with pytest.warns(SlowPrecisionWarning):
        assert mxmp.gluon.convert(net, "mixed_bfloat16") is net


def test_a_net_is_refused_where_it_runs_on_a_processor_without_avx512(on_processor):
    on_processor(processor_of(NO_BFLOAT16, name="Xeon"))
    net = dense()
    mxmp.gluon.convert(net, "mixed_bfloat16")
    text = r"^block '\w+' computes in bfloat16, which MXNet does not run on this processor \(Xeon\): it needs AVX-512"
    with pytest.raises(ConvertError, match=text):
        net(mx.nd.ones((2, 4)))
    mxmp.gluon.convert(net, "float32")
    assert net(mx.nd.ones((2, 4))).shape == (2, 3)


def test_a_module_is_refused_where_it_runs(on_processor):
    on_processor(NO_BFLOAT16)
    module = bind("mixed_bfloat16")
    module.init_params()
    with pytest.raises(ConvertError, match="^forward: symbol 'softmax' computes in bfloat16, which MXNet does not run"):
        module.forward(mx.io.DataBatch([mx.nd.ones((2, 4))], [mx.nd.zeros(2)]))
