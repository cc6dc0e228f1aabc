"""Each script of `examples` does what it claims: a copy outside the clone, run as a process, small."""

import ast
import io
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import gluoncv
import mxnet as mx
import numpy as np
import pytest
from matplotlib.image import imread
from PIL import Image

import mxmp
from mxmp.diagnose import Comparison, Steps

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("plots", "sample_data")  # what several scripts import; they are no scripts
SCRIPTS = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem not in BESIDE)


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a copy of a script in a folder that has mxmp and data at hand, and returns its output."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "mxmp").symlink_to(ROOT / "mxmp")
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}

    def call(script, *args, code=0):
        copy = shutil.copy(ROOT / "examples" / f"{script}.py", tmp_path)
        for module in BESIDE:
            shutil.copy(ROOT / "examples" / f"{module}.py", tmp_path)
        command = [sys.executable, "-W", "ignore", copy, *map(str, args)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == code, done.stdout + done.stderr
        if code == 0:  # the output that the gallery shows differs in numbers alone
            recorded = re.findall(r"^    (.*)$", ast.get_docstring(ast.parse(Path(copy).read_text("utf-8"))), re.MULTILINE)
            assert shapes(recorded) & shapes(done.stdout.splitlines())
        return done.stdout if code == 0 else done.stderr

    return call


def shapes(lines):
    """Return lines without their numbers, spaces and the borders of tables."""
    return {re.sub(r"\d[\d.,]*(e[+-]?\d+)?", "#", re.sub(r"[│\s]+", " ", line)).strip() for line in lines}


def numbers(text, name):
    """Return the numbers that follow a name in a text."""
    return [float(value) for value in re.findall(rf"{re.escape(name)}[ =]([\d.]+(?:e[+-]\d+)?)", text)]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_and_imports_nothing_of_the_repository_but_mxmp_and_data_at_hand(path):
    source = path.read_text("utf-8")
    modules = [
        name.split(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    ]
    assert len(source.splitlines()) <= 125
    assert [name for name in modules if name in ("mxmp", "mxnet", "gluoncv")][0] == "mxmp"
    assert not {"symbols", "examples", "benchmarks", "tests", "tools"} & set(modules)
    assert f"python {path.name}" in ast.get_docstring(ast.parse(source))


def test_gluon_classification_resumes_to_the_bit_and_saves_float32(run, tmp_path):
    small = ("--batch-size", 200, "--size", 8, "--epochs", 2, "--policy", "O2", "--ctx", "cpu:0")
    whole = run("gluon_classification", *small).splitlines()[-1]
    resumed = run("gluon_classification", *small, "--resume", 1)
    assert len(resumed.splitlines()) == 1
    assert re.sub(r"\d+ images/s", "", resumed.strip()) == re.sub(r"\d+ images/s", "", whole)
    net = gluoncv.model_zoo.get_model("cifar_resnet20_v1", classes=10, pretrained=False)
    net.load_parameters(str(tmp_path / "classifier-0002.params"))
    assert all(param.data().dtype == np.float32 for param in net.collect_params().values())


def write_records(path, labels):
    """Write a record file of plain images, with its index, as im2rec.py does."""
    record = mx.recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "w")
    for number, label in enumerate(labels):
        png = io.BytesIO()
        Image.fromarray(np.full((48, 48, 3), 6 * number, np.uint8)).save(png, "png")
        header = struct.pack("<IfQQ", np.size(label) if np.ndim(label) else 0, np.ravel(label)[0], number, 0)
        record.write_idx(number, header + np.float32(label if np.ndim(label) else []).tobytes() + png.getvalue())
    record.close()


def write_idx(path, array):
    """Write an array of bytes as MNIST's files have it."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_voc(root, part, names):
    """Write a part of PASCAL VOC 2007: an image for each name, with one object of it."""
    for folder in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "ImageSets" / "Main" / f"{part}.txt").write_text("".join(f"{part}{k}\n" for k in range(len(names))))
    box = "<xmin>10</xmin><ymin>10</ymin><xmax>30</xmax><ymax>35</ymax>"
    for number, name in enumerate(names):
        Image.fromarray(np.full((48, 48, 3), 6 * number, np.uint8)).save(root / "JPEGImages" / f"{part}{number}.jpg")
        found = f"<object><name>{name}</name><difficult>0</difficult><bndbox>{box}</bndbox></object>"
        size = "<size><width>48</width><height>48</height></size>"
        (root / "Annotations" / f"{part}{number}.xml").write_text(f"<annotation>{size}{found}</annotation>")


def test_gluon_classification_reads_folders_on_two_contexts_with_another_network(run, tmp_path):
    for part in ("train", "val"):
        for kind in ("cat", "dog"):
            (tmp_path / part / kind).mkdir(parents=True)
            for number in range(4):
                Image.fromarray(np.full((40, 40, 3), 9 * number, np.uint8)).save(tmp_path / part / kind / f"{number}.png")
    options = ("--data", ".", "--classes", 2, "--size", 32, "--epochs", 1, "--batch-size", 4, "--network", "mobilenet0.25")
    assert 0 <= numbers(run("gluon_classification", *options, "--ctx", "cpu:0", "cpu:1"), "accuracy")[0] <= 1


def test_module_classification_learns_and_resumes(run, tmp_path):
    assert numbers(run("module_classification", "--epochs", 3), "Validation-accuracy")[-1] > 0.8
    assert "Epoch[3]" in run("module_classification", "--epochs", 4, "--resume", 3)
    loaded = mx.model.load_checkpoint(str(tmp_path / "classifier"), 3)
    assert {array.dtype for array in loaded[1].values()} == {np.float32}


PARTS = ("train", "val")
SMALL = ("--data", ".", "--epochs", 1, "--batch-size", 8, "--classes")


@pytest.fixture
def scenes(tmp_path):
    """Write record files of 16 scenes for each part."""
    box = [0.2, 0.2, 0.6, 0.7]
    for part in PARTS:
        write_records(tmp_path / f"{part}.rec", [[2, 5, 0, *box], [2, 5, 1, *box, 0, *box]] * 8)


@pytest.fixture
def images(tmp_path):
    """Write record files of 16 images of two classes for each part."""
    for part in PARTS:
        write_records(tmp_path / f"{part}.rec", [0.0, 1.0] * 8)


def test_gluons_detector_reads_record_files(run, scenes):
    assert numbers(run("gluon_ssd", *SMALL, "cat", "dog"), "mean average precision")


def test_the_symbolic_detector_reads_record_files_and_its_schedule_counts_their_batches(run, scenes):
    text = run("symbol_ssd", *SMALL, "cat", "dog", "--epochs", 2, "--images", 8)
    assert numbers(text, "mean average precision") and numbers(text, "learning rate") == [0.0015, 0]


def test_gluons_detector_reads_pascal_voc(run, tmp_path):
    for part in ("trainval", "test"):
        write_voc(tmp_path / "VOC2007", part, ["cat", "dog"] * 4)
    assert numbers(run("gluon_ssd", *SMALL, "cat", "dog"), "mean average precision")


@pytest.mark.parametrize("script, measure", [("gluon_classification", "accuracy"), ("module_classification", "Validation-accuracy")])
def test_a_classifier_reads_record_files(run, images, script, measure):
    assert 0 <= numbers(run(script, *SMALL, 2), measure)[0] <= 1


def test_module_classification_reads_the_files_of_mnist(run, tmp_path):
    for part in ("train", "t10k"):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", np.arange(16 * 28 * 28).reshape(16, 28, 28))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", np.arange(16) % 10)
    assert 0 <= numbers(run("module_classification", *SMALL, 10), "Validation-accuracy")[0] <= 1


@pytest.mark.parametrize("script", ["gluon_ssd", "symbol_ssd"])
def test_a_detector_finds_digits(run, script, tmp_path):
    text = run(script, "--epochs", 2, "--images", 256)
    assert numbers(text, "mean average precision")[-1] > 0.1
    assert list(tmp_path.glob("ssd*.params"))


def test_a_language_model_of_gluon_learns_the_words_of_a_file(run, tmp_path):
    (tmp_path / "text.txt").write_text("one two three four five six seven\n" * 1500, encoding="utf-8")
    text = run("word_lm_gluon", "--text", "text.txt", "--vocabulary", 12, "--hidden", 8, "--epochs", 1)
    assert 1 < numbers(text, "perplexity")[0] < 12


def test_a_language_model_of_a_module_learns_words(run):
    text = run("word_lm_module", "--lines", 2000, "--vocabulary", 500, "--epochs", 2)
    assert numbers(text, "perplexity")[-1] < 150 and "steps skipped" in text


def test_a_gan_moves_one_scale_for_both_trainers_and_draws(run, tmp_path):
    text = run("gan", "--epochs", 2, "--channels", 8)
    first, last = numbers(text, "of the discriminator")
    assert 0 < last < first and len(numbers(text, "loss scale")) == 2
    assert imread(tmp_path / "gan.png").shape[:2] == (128, 128)


def test_workers_end_with_the_same_weights_and_train_as_one(run, tmp_path):
    text = run("several_machines", "--epochs", 2, "--policy", "O0")
    files = [(tmp_path / f"worker-{rank}.params").read_bytes() for rank in range(2)]
    assert files[0] == files[1]
    means = np.reshape(sorted(zip(numbers(text, "epoch"), numbers(text, "loss"))), (2, 2, 2))[:, :, 1].mean(axis=1)
    alone = numbers(run("several_machines", "--epochs", 2, "--policy", "O0", "--workers", 1), "loss")
    np.testing.assert_allclose(means, alone, rtol=1e-3)


def test_an_encoder_is_fine_tuned_with_masks(run):
    text = run("fine_tune_bert", "--pretraining", 20, "--steps", 60)
    first, last = map(float, re.search(r"O1: loss ([\d.]+) to ([\d.]+)", text).groups())
    assert last < first / 2 and float(re.search(r"([\d.]+)% of", text)[1]) > 45


@pytest.mark.parametrize("policy", ["O2", pytest.param("mixed_bfloat16", marks=pytest.mark.bfloat16)])
def test_a_deployed_network_scores_as_the_trained_one(run, policy):
    scores = [float(value) for value in re.findall(r"([\d.]+)% right", run("deploy", "--steps", 15, "--policy", policy))]
    assert len(scores) == (3 if policy == "O2" else 4)
    np.testing.assert_allclose(scores, scores[0], atol=1.0)


def test_the_search_names_the_operators_and_writes_a_float16_model(run, tmp_path):
    text = run("find_float32_operators", "--steps", 60, "--tolerance", 0.01)
    assert "3 operators by 3 names, each of them is needed" in text
    assert "digits__mul0" in text
    arrays = mx.nd.load(str(tmp_path / "digits-0000.params")).values()
    assert {array.dtype.__name__ for array in arrays} == {"float16", "float32"}


def test_the_verdict_on_attention_names_the_override_that_mends_it(run, tmp_path):
    printed = run("broken_attention_overflow", "--steps", 6, "--run", "broken").splitlines()
    assert printed[0].startswith("O1: 5 of 5 steps skipped")
    name, _, rest = printed[1].partition(": ")
    assert name == "O1,name:net_attention_scores=float32"
    assert int(rest.split()[0]) <= 2 and 0 < float(rest.split()[-1]) < 3
    assert printed[2].startswith("activation out of range: no loss scale mends this activation. ")
    assert "forward: 'net_attention_scores' (batch_dot, float16) gives inf" in printed[2]
    kept = mxmp.diagnose.read_run(str(tmp_path / "broken"))
    assert [step["taken"] for step in kept.find(Steps).steps] == [False] * 5
    assert kept.find(Comparison).rows[0].name == "net_attention_scores"
    assert "net_attention_scores" in kept.to_html()


def test_gradients_that_vanish_are_counted_and_a_scale_keeps_them(run):
    first, _, second, _, last = run("broken_vanishing_gradients", "--steps", 8).splitlines()
    (lost, few), (lost_scaled, few_scaled) = (map(int, re.findall(r"(\d+)%", line)) for line in (first, second))
    assert lost > 20 and lost + few > 90 and lost_scaled == 0 and few_scaled <= 5
    assert 1 < numbers(second, "loss scale")[0] < numbers(last, "gradients:")[0]


def test_updates_are_lost_in_float16_alone_and_not_with_masters(run):
    scores = run("broken_lost_update", "--steps", 20).splitlines()
    masters, alone = (float(line.partition("%")[0].rpartition(" ")[2]) for line in scores)
    assert masters > 2 * alone


def test_the_verdict_on_a_nan_image_names_input_and_row(run):
    text = run("broken_nan_image")
    number = int(re.search(r"step (\d+) was skipped: data", text)[1])
    order = np.random.RandomState(0).permutation(1797)
    row = list(order[(number - 1) * 32 : number * 32]).index(737)
    assert "left out: image 737" in text
    assert f"input 'data' holds NaN in 3 of 2,048 elements, in row {row}." in text
    assert numbers(text, "last loss")[0] < 1


def test_the_demo_compares_modes_in_a_table_and_a_plot(run, tmp_path):
    text = run("digits", "--epochs", 1, "--modes", "float32", "O2", "mixed_bfloat16", "--batch-size", 200)
    lines = [line.replace("(auto)", "").split("│") for line in text.splitlines() if "%" in line and "│" in line]
    rows = {line[1].strip(): line for line in lines}
    single, half = (int(rows[mode][4].replace(",", "")) for mode in ("float32", "float16 O2"))
    assert half < 0.6 * single
    losses = [line.split() for line in text.splitlines() if line.startswith("step ")]  # into a file: a line an epoch
    assert [line[:5] for line in losses] == [["step", "6", "of", "6:", "float32"]]
    assert "NOT the same" not in text and ("the same as here" in text) == ("bfloat16" in rows)
    assert imread(tmp_path / "output" / "digits.png").shape[:2] == (840, 1080)


def test_the_gallery_shows_a_demo_that_has_learned():
    docstring = ast.get_docstring(ast.parse((ROOT / "examples" / "digits.py").read_text("utf-8")))
    shares = [float(share) for share in re.findall(r"([\d.]+)%", docstring)]
    assert len(shares) == 4 and min(shares) > 98


def test_the_demo_refuses_an_unknown_policy_in_its_last_line(run):
    assert "unknown policy 'O9'" in run("digits", "--modes", "O9", code=1).splitlines()[-1]


def test_the_papers_networks_train_on_record_files_and_are_converted_from_the_clone(images, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def call(name, *args):
        command = [sys.executable, "-W", "ignore", "-m", f"symbols.examples.{name}", *args]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)

    trained = call("train", "lenet", "--size", "20", "--epochs", "1", "--batch-size", "16", "--data", ".")
    assert "Validation-accuracy" in trained.stdout, trained.stderr
    converted = call("convert", "lenet", "1", "half", "--size", "20")
    sizes = [int(value.replace(",", "")) for value in re.findall(r"right, ([\d,]+) bytes", converted.stdout)]
    assert sizes[1] < 0.6 * sizes[0], converted.stderr
