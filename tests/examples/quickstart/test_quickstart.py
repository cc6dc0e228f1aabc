"""The quickstart scripts, each copied out of the repository and run as a user would."""

from __future__ import annotations

import io
import os
import re
import runpy
import shutil
import struct
import subprocess
import sys
import traceback
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = sorted((ROOT / "examples" / "quickstart").glob("*.py"))
CLASSIFIERS = "gluon_classification", "module_classification"
DETECTORS = "gluon_ssd", "symbol_ssd"
EPOCHS = {"gluon_classification": 2, "module_classification": 2, "gluon_ssd": 2, "symbol_ssd": 3}
# What the last epoch has to reach: above chance (0.1; 0 for AP), or below the loss of an untrained network.
LEARNED = {
    "gluon_classification": (r"acc\. ([\d.]+)", lambda accuracy: accuracy > 0.4),
    "module_classification": (r"Validation-accuracy=([\d.]+)", lambda accuracy: accuracy > 0.4),
    "gluon_ssd": (r"AP ([\d.]+)", lambda precision: precision > 0.7),
    "symbol_ssd": (r"Validation-class_loss=([\d.]+)", lambda loss: loss < 0.025),
}
# What a user without mxmp does with the files. Draws new examples with the script's own function.
SCORE = {
    "gluon_classification": """
net = mx.gluon.SymbolBlock.imports("gluon_classification-symbol.json", ["data"], "gluon_classification-0000.params")
images, labels = draw_digits(256)[:]
print((net(mx.nd.array(images)).argmax(1).asnumpy() == labels).mean())
""",
    "module_classification": """
module = mx.mod.Module.load("module_classification", 2)
examples = draw_digits(256)
module.bind(examples.provide_data, examples.provide_label, for_training=False)
print(dict(module.score(examples, "acc"))["accuracy"])
""",
    "gluon_ssd": """
net = mx.gluon.SymbolBlock.imports("gluon_ssd-symbol.json", ["data"], "gluon_ssd-0000.params")
images, labels = draw_rectangles(64)[:]
right = []
for label, kinds, boxes in zip(labels[:, 0], *(each.asnumpy() for each in net(mx.nd.array(images))[::2])):
    overlap = mx.nd.contrib.box_iou(mx.nd.array(label[None, :4]), mx.nd.array(boxes[:1])).asnumpy()[0, 0]
    right.append(label[4] == kinds[0, 0] and overlap > 0.5)
print(np.mean(right))
""",
    "symbol_ssd": """
symbol, arg_params, aux_params = mx.model.load_checkpoint("symbol_ssd", 0)
examples = draw_rectangles(64)
module = mx.mod.Module(symbol, label_names=None)
module.bind(examples.provide_data, for_training=False)
module.set_params(arg_params, aux_params)
batches = [(batch.label[0], outputs[0].copy()) for outputs, _, batch in module.iter_predict(examples)]
labels, found = (mx.nd.concat(*each, dim=0).asnumpy() for each in zip(*batches))
right = []
for label, rows in zip(labels[:, 0], found):
    best = rows[rows[:, 1].argmax()]
    overlap = mx.nd.contrib.box_iou(mx.nd.array(label[None, 1:]), mx.nd.array(best[None, 2:])).asnumpy()[0, 0]
    right.append(label[0] == best[0] and overlap > 0.5)
print(np.mean(right))
""",
}


def run(folder, *command):
    """Run Python in a folder with mxmp installed, which is all that a copied script has of the repository."""
    environ = {**os.environ, "PYTHONPATH": str(folder / "site"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, command)]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)


def copy(name, folder):
    """Copy a script to a folder with a stand-in for site-packages that holds mxmp alone."""
    (folder / "site").mkdir()
    (folder / "site" / "mxmp").symlink_to(ROOT / "mxmp")
    return shutil.copy(ROOT / "examples" / "quickstart" / f"{name}.py", folder)


def train(name, folder, epochs, *args):
    """Train a copy of a script; return all that it printed."""
    done = run(folder, copy(name, folder), "--epochs", epochs, "--ctx", "cpu", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def score(name, folder):
    """Return the share that the saved network gets right, in a process in which mxmp is never imported."""
    source = (folder / f"{name}.py").read_text()
    function = re.search(r"^def draw_\w+\(count\):\n(?:    .*\n)+", source, re.MULTILINE).group()
    constants = "\n".join(re.findall(r"^(?:SIZE|DIGITS)\b.*", source, re.MULTILINE))
    compatible = "import sys, warnings\nwarnings.simplefilter('ignore')\nimport mxmp\n" if NEEDS_MXMP else ""
    body = f"{compatible}import mxnet as mx\nimport numpy as np\nfrom mxnet import gluon\n{constants}\n\n{function}\n"
    (folder / "plain.py").write_text(f"{body}\nnp.random.seed(7)\n{SCORE[name]}")
    done = run(folder, folder / "plain.py")
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[-1])


NEEDS_MXMP = sys.version_info >= (3, 12) or tuple(map(int, np.__version__.split(".")[:2])) >= (1, 24)
"""Whether this MXNet imports with mxmp's stand-ins alone."""


def test_there_are_four():
    assert sorted(path.stem for path in SCRIPTS) == sorted(CLASSIFIERS + DETECTORS)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_has_at_most_80_lines_and_imports_mxmp_first(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 80
    imports = [line.split()[1].split(".")[0] for line in lines if re.match(r"(import|from) ", line)]
    third_party = [name for name in imports if name in ("mxmp", "mxnet", "numpy", "gluoncv")]
    assert third_party[0] == "mxmp"
    assert set(imports) <= {"argparse", "logging", "os", "time", "mxmp", "mxnet", "numpy"} | (
        {"gluoncv"} if path.stem == "gluon_ssd" else set()
    )


@pytest.mark.parametrize("name", CLASSIFIERS + DETECTORS)
def test_a_copied_script_learns_in_float16_and_plain_mxnet_loads_what_it_saves(name, tmp_path):
    learns(name, "float16", tmp_path)


@pytest.mark.slow
@pytest.mark.bfloat16
@pytest.mark.parametrize("name", CLASSIFIERS + DETECTORS)
def test_a_copied_script_learns_in_bfloat16(name, tmp_path):
    learns(name, "bfloat16", tmp_path)


def learns(name, dtype, folder):
    said = train(name, folder, EPOCHS[name], "--dtype", dtype)
    assert dtype in said
    pattern, reached = LEARNED[name]
    values = [float(found) for found in re.findall(pattern, said)]
    assert len(values) == EPOCHS[name]
    assert reached(values[-1]), said
    assert score(name, folder) > 0.4


def write_records(path, labels):
    """Write a record file of plain images, with its index, as im2rec.py does."""
    record = mx.recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "w")
    for number, label in enumerate(labels):
        png = io.BytesIO()
        Image.fromarray(np.full((48, 48, 3), 6 * number, np.uint8)).save(png, "png")
        flag = np.size(label) if np.ndim(label) else 0
        value = 0 if flag else label
        header = struct.pack("<IfQQ", flag, value, number, 0)  # as mx.recordio.pack, which calls what numpy deprecated
        record.write_idx(number, header + np.float32(label if flag else []).tobytes() + png.getvalue())
    record.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS + DETECTORS)
def test_a_script_reads_record_files_and_trains_in_float32(name, tmp_path):
    box = [0.2, 0.2, 0.6, 0.7]
    one, two = ([2, 5, 0, *box], [2, 5, 1, *box, 0, *box]) if name in DETECTORS else (0.0, 1.0)
    classes = ["cat", "dog"] if name == "gluon_ssd" else [2]
    for part, labels in ("train", [one, two] * 20), ("val", [one] * 40):
        write_records(tmp_path / f"{part}.rec", labels)
    said = train(name, tmp_path, 1, "--data", tmp_path, "--classes", *classes, "--dtype", "float32")
    assert "float32" in said and "poch" in said


def ended(name, monkeypatch, *args):
    """Run a script in this process, as ``python`` runs it; return the error that ends it.

    That scripts run in a process of their own, where mxmp is imported first, is what the tests above show.
    """
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *args])
    with pytest.raises(BaseException) as found:
        runpy.run_path(str(ROOT / "examples" / "quickstart" / f"{name}.py"), run_name="__main__")
    return found.value


@pytest.mark.parametrize("name", CLASSIFIERS + DETECTORS)
def test_a_wrong_option_ends_with_one_line_that_names_it(name, monkeypatch, capsys):
    assert ended(name, monkeypatch, "--dtype", "fp16").code == 2
    assert "argument --dtype: invalid choice: 'fp16' (choose from" in capsys.readouterr().err
    error = ended(name, monkeypatch, "--data", "nowhere")
    if isinstance(error, SystemExit):
        assert error.code == 2
        last = capsys.readouterr().err
    else:  # which ends a process with code 1
        last = "".join(traceback.format_exception_only(type(error), error))
    assert "nowhere" in last.splitlines()[-1]


@pytest.mark.skipif(mx.context.num_gpus() > 0, reason="there is a GPU")
@pytest.mark.parametrize("name", CLASSIFIERS + DETECTORS)
def test_without_a_gpu_a_script_says_so(name, monkeypatch, capsys):
    assert ended(name, monkeypatch, "--ctx", "gpu").code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(
        "error: --ctx gpu: MXNet finds no GPU here; --ctx cpu trains without one"
    )
