"""What is decided on each kind of processor, in every front; and that nothing reads the processor in another place."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import mxnet as mx
import pytest
from mxnet import gluon

import mxmp
from mxmp import Policy
from mxmp.diagnose import AmxStatus, fastest_policy
from mxmp.errors import PolicyError, SlowPrecisionWarning
from mxmp.symbol import convert_model, convert_symbol, to_graph
from tests.devices.machines import install_cards
from tests.passes.graphs import converted
from tests.processors import AMD, AMX, KINDS, pin, processor_of

ROOT = Path(__file__).resolve().parents[2]
OFF = processor_of(AMX, amx=AmxStatus(False, "ALL is set.", "Unset it."))
NOTE = "AMX is off: ALL is set. Unset it."
GAINS = {kind: kind in (AMD, AMX) for kind in KINDS}
V100, PASCAL = ("Tesla V100", "7.0"), ("GeForce GTX 1080", "6.1")

each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def dense():
    """Return a block that has its graph, so that it need not run to be converted."""
    data = mx.sym.var("data", dtype="float32")
    net = gluon.SymbolBlock(mx.sym.FullyConnected(data, num_hidden=3, name="dense"), data)
    net.collect_params()["dense_weight"].shape, net.collect_params()["dense_bias"].shape = (3, 4), (3,)
    net.initialize()
    return net


def symbol():
    return mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")


def params():
    return {"fc_weight": mx.nd.ones((3, 4)), "fc_bias": mx.nd.zeros(3)}, {}


def of_module(policy):
    module = mxmp.module.Module(symbol(), label_names=None, policy=policy)
    module.bind([("data", (2, 4))], for_training=False)
    return module.policy, module.report


def of_buckets(policy):
    module = mxmp.module.BucketingModule(lambda key: (symbol(), ["data"], None), 4, policy=policy)
    module.bind([("data", (2, 4))], for_training=False)
    return module.policy, module.report


def of_net(policy):
    report = mxmp.gluon.report(mxmp.gluon.convert(dense(), policy))
    return Policy.parse(report.policy), report


def of_frozen(policy):
    report = mxmp.gluon.report(mxmp.gluon.freeze(dense(), policy))
    return Policy.parse(report.policy), report


def of_model(policy):
    report = convert_model(symbol(), *params(), policy, {"data": (2, 4)}).report
    return Policy.parse(report.policy), report


FRONTS = {"Gluon": of_net, "freeze": of_frozen, "Module": of_module, "BucketingModule": of_buckets, "model": of_model}


# ------------------------------------------------------------------ the policy 'auto'


@each_kind
@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
def test_auto_is_what_gains_and_the_report_says_why(kind, front, on_processor):
    processor = on_processor(kind)
    policy, report = front("auto")
    assert policy.compute_dtype == ("bfloat16" if GAINS[kind] else "float32")
    (note,) = report.notes
    name = "mixed_bfloat16" if GAINS[kind] else "float32"
    assert note.startswith(f"The policy 'auto' takes {name} here, because this processor ({processor.name}) is of the kind '{kind.name}'.")
    assert kind.figure in note and kind.slower in note and "auto" not in report.policy


@each_kind
def test_auto_takes_exceptions_on_each_kind(kind, on_processor):
    on_processor(kind)
    net = mxmp.gluon.convert(dense(), "auto,name:dense*=float32", last_layer_fp32=True)
    policy = Policy.parse(mxmp.gluon.report(net).policy)
    assert policy.names == (("dense*", "float32"),) and policy.last_layer_fp32 is GAINS[kind]
    with pytest.raises(PolicyError, match="unknown field 'nmae:x'|unknown override 'nmae:x'"):
        mxmp.gluon.convert(dense(), "auto,nmae:x=float32")
    with pytest.raises(PolicyError, match="unknown policy field 'last_layer_fp23'"):
        mxmp.gluon.convert(dense(), "auto", last_layer_fp23=True)


@pytest.mark.parametrize(
    ("cards", "contexts", "name"),
    [
        ([V100], [mx.gpu(0)], "O1"),
        ([V100, V100], [mx.gpu(0), mx.gpu(1)], "O1"),
        ([V100, PASCAL], [mx.gpu(0)], "float32"),
        ([PASCAL], [mx.gpu(0)], "float32"),
        ([("GeForce GTX 1660", "7.5")], [mx.gpu(0)], "float32"),
        ([], [mx.gpu(0)], "float32"),
        ([V100], [mx.cpu()], "mixed_bfloat16"),
        ([V100], [mx.cpu(), mx.gpu(0)], "float32"),
        ([V100], [], "O1"),
        ([PASCAL], [], "mixed_bfloat16"),
        ([], [], "mixed_bfloat16"),
    ],
)
def test_auto_goes_by_the_cards_where_the_network_is_on_gpus(cards, contexts, name, tmp_path, monkeypatch, on_processor):
    install_cards(tmp_path, monkeypatch, cards)
    on_processor(AMX)
    monkeypatch.setattr("mxmp.devices.auto.count_gpus", lambda: len(cards))
    assert fastest_policy(contexts) == Policy.parse(name)


def test_auto_needs_onednn(monkeypatch, on_processor):
    on_processor(AMD)
    monkeypatch.setenv("MXNET_MKLDNN_ENABLED", "0")
    with pytest.warns(SlowPrecisionWarning, match="Unset MXNET_MKLDNN_ENABLED"):
        assert fastest_policy([mx.cpu()]) == Policy()


def test_auto_is_of_a_network_and_no_policy_by_itself():
    with pytest.raises(PolicyError, match="^'auto' is chosen where a network is converted: mxmp.gluon.convert and "):
        Policy.parse("auto")
    with pytest.raises(PolicyError, match="unknown policy field 'chosen'"):
        Policy().replace(chosen="mine")
    with pytest.raises(PolicyError, match="unknown policy 'atuo'.*auto"):
        Policy.parse("atuo")
    assert Policy() == fastest_policy([mx.gpu(0), mx.cpu()]) and "chosen" not in repr(fastest_policy([mx.cpu()]))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [AMD, AMX], ids=lambda kind: kind.name)
def test_a_symbol_is_converted_for_this_machine(kind, on_processor):
    on_processor(kind)
    found = to_graph(convert_symbol(symbol(), "auto"))
    assert "bfloat16" in {node.get("dtype") for node in found.nodes}


@pytest.mark.parametrize("given", [{"policy": "auto", "compute_dtype": "float16"}, {"policy": "auto,compute=bfloat16"}], ids=str)
def test_a_compute_dtype_beside_auto_is_refused(given):
    for ask in (lambda: mxmp.gluon.convert(dense(), **given), lambda: convert_model(symbol(), *params(), **given)):
        with pytest.raises(PolicyError, match="^'auto' chooses the compute dtype; leave that field out"):
            ask()


def test_freeze_takes_a_compute_dtype_without_a_policy(on_processor):
    on_processor(processor_of(AMX, amx=OFF.amx))
    with pytest.warns(SlowPrecisionWarning):
        frozen = mxmp.gluon.freeze(dense(), compute_dtype="bfloat16")
    assert mxmp.gluon.report(frozen).policy.startswith("param=bfloat16,compute=bfloat16")


def test_the_reason_goes_with_the_choice(on_processor):
    on_processor(AMX)
    chosen = fastest_policy([mx.cpu()])
    assert chosen.chosen and chosen.replace(last_layer_fp32=True).chosen and not chosen.replace(compute_dtype="float16").chosen
    net = mxmp.gluon.set_policy(dense(), chosen)
    for policy, noted in (("mixed_bfloat16", False), ("auto", True), ("mixed_bfloat16", False)):
        assert bool(mxmp.gluon.report(mxmp.gluon.convert(net, policy)).notes) == noted
    kept = mxmp.gluon.freeze(mxmp.gluon.convert(dense(), "bfloat16"))
    assert not mxmp.gluon.report(kept).notes  # the net's own policy


# ------------------------------------------------------------------ where AMX is off


@pytest.mark.parametrize("front", [of_net, of_module, of_buckets, of_frozen], ids=["Gluon", "Module", "Buckets", "freeze"])
def test_bfloat16_where_amx_is_off_warns_and_notes_it(front, on_processor):
    on_processor(OFF)
    with pytest.warns(SlowPrecisionWarning, match="bfloat16 is slower than float32, as AMX is off: ALL is set. Unset it."):
        _, report = front("mixed_bfloat16")
    assert report.notes == (NOTE,) and report.summary.count(NOTE) == 1
    assert report == replace(report, notes=()) and "AMX" not in report.to_json()  # which go by the network alone


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
def test_auto_where_amx_is_off_warns_and_notes_it(front, on_processor):
    on_processor(OFF)
    with pytest.warns(SlowPrecisionWarning, match=rf"takes float32 here, because .* without AMX. {re.escape(NOTE)}") as found:
        policy, report = front("auto")
    assert len(found) == 1 and found[0].filename == __file__
    assert policy == Policy() and report.notes[0].endswith(NOTE)


def test_a_comparison_of_speeds_notes_it(on_processor):
    on_processor(OFF)
    found = mxmp.tune.compare_speed(dense(), [mx.nd.ones((2, 4))], ["float32", "mixed_bfloat16"], seconds=0.01)
    assert NOTE in found.notes and NOTE in str(found).replace("\n", " ").replace("  ", " ")


# ------------------------------------------------------------------ what runs


@each_kind
def test_only_the_kind_decides_what_runs(kind):
    """The same network gets the same graph on two processors of one kind, whatever their names and other flags are."""
    net = mx.sym.Convolution(mx.sym.Activation(mx.sym.Convolution(
        mx.sym.var("data"), num_filter=20, kernel=(3, 3), name="a"), act_type="relu"), num_filter=16, kernel=(3, 3), name="b")  # fmt: skip
    graphs = []
    for name in ("one", "another"):
        found = processor_of(kind)
        with pytest.MonkeyPatch.context() as patch:
            pin(patch, found._replace(name=name, flags=found.flags | ({"sse4_2"} if found.flags else set())))
            graphs += [
                to_graph(converted(net, {"data": (4, 65, 24, 24)}, "mixed_bfloat16").on_cpu(trains, fused))
                for trains, fused in ((True, False), (False, True), (False, False))
            ]
    assert graphs[:3] == graphs[3:]


READS = {
    "read_cpuinfo": {"processors.py", "devices/processor.py", "devices/amx.py", "__init__.py"},
    "amx_status": {"devices/processor.py", "devices/amx.py", "diagnose/__init__.py"},
    "uses_amx": {"devices/amx.py"},
}
"""What asks about this machine's processor, and the files that may: all others ask `read_processor`."""


def test_the_processor_is_read_in_one_place():
    for path in sorted((ROOT / "mxmp").rglob("*.py")):
        file, tree = str(path.relative_to(ROOT / "mxmp")), ast.parse(path.read_text("utf-8"))
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        for name, files in READS.items():
            assert name not in names or file in files, f"{file} asks {name}; take devices.processor.read_processor"


def test_the_readme_says_what_auto_does():
    text = (ROOT / "README.md").read_text("utf-8")
    rows = [row for row in re.findall(r"^\| (.*?) \|$", text, re.MULTILINE) if row.startswith(("a CPU", "another CPU"))]
    assert len(rows) == 3
    for row in rows:
        named, train, _ = row.split(" | ")
        kinds = [AMX] if "AMX" in named else [AMD] if "AMD" in named else [kind for kind in KINDS if not GAINS[kind]]
        assert {"mixed_bfloat16" in train} == {GAINS[kind] for kind in kinds}
