"""The code of the README and of the guides runs, and prints what they say."""

import ast
import os
import re
import shlex
from pathlib import Path

import mxnet as mx
import nbclient
import nbformat
import pytest
from mxnet import autograd, gluon
from mxnet.gluon.contrib.estimator import Estimator

import mxmp
from mxmp.diagnose import runs_bfloat16
from tests.cli.checkpoints import run

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(page for page in DOCS.rglob("*.md") if "build" not in page.parts)]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")

# The page on tuning is about what bfloat16 gains; of others the code that names it is left out where it does not run.
RUN = [
    pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.bfloat16] if page.stem == "tuning" else []) for page in PAGES
]


def blocks(page):
    """Return (language, code, printed) for each block of code, with the ```text block after it, if any."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    following = [*found[1:], ("", "")]
    return [
        (language, code, after if kind == "text" else None)
        for (language, code), (kind, after) in zip(found, following)
        if language in ("python", "sh")
    ]


def commands(code):
    """Return the arguments of each line if all are commands of mxmp that run on one machine alone, else None.

    The script that a guide launches has a test of its own, with those of dist_sync.
    """
    lines = [shlex.split(line, comments=True) for line in code.splitlines()]
    return [line[1:] for line in lines] if all(line[:1] == ["mxmp"] for line in lines) else None


def stripped(text):
    return None if text is None else [line.strip() for line in text.splitlines()]


@pytest.mark.parametrize("marks", ["-", "+"], ids=["before", "after"])
def test_the_difference_of_the_readme_runs_before_and_after(marks, monkeypatch, tmp_path):
    """On two contexts of the CPU in place of two GPUs."""
    monkeypatch.chdir(tmp_path)
    (difference,) = [code for language, code in FENCE.findall(PAGES[0].read_text(encoding="utf-8")) if language == "diff"]
    lines = [line[1:] for line in difference.splitlines() if line[:1] in ("", " ", marks)]
    batch = mx.nd.random.uniform(shape=(4, 3, 32, 32)), mx.nd.arange(4)
    exec("\n".join(lines).replace("mx.gpu", "mx.cpu"), {"loader": [batch, batch]})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.params", "net.states"]


class Net(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.output = gluon.nn.Dense(10, in_units=20)

    def hybrid_forward(self, F, x):
        return self.output(x)


def given():
    """Return what the right columns of the pages on other toolkits take for granted."""
    net = Net()
    net.initialize()
    loss_fn, data, label = gluon.loss.SoftmaxCrossEntropyLoss(), mx.nd.random.uniform(shape=(4, 20)), mx.nd.arange(4)
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    estimator = Estimator(net, loss_fn, trainer=trainer, context=mx.cpu())
    estimator.logger.setLevel("WARNING")
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(data, label), 2)
    return {**locals(), "make_net": lambda: net, "batch_size": 4, "mxmp": mxmp, "amp": mxmp.amp, "autograd": autograd}


@pytest.mark.parametrize("page", ["apex", "contrib_amp", "fastai", "keras", "torch"])
def test_the_column_of_mxmp_runs(page):
    column = (DOCS / "guides" / "coming_from" / f"{page}.md").read_text(encoding="utf-8").partition("**mxmp**")[2]
    names = given()
    weight = names["net"].output.weight
    before = weight.data().asnumpy()
    exec(re.search(r"```py\n(.*?)```", column, re.DOTALL).group(1), names)
    assert (weight.data().asnumpy() != before).any() == (page != "keras")  # all others train


@pytest.mark.slow
def test_the_tour_runs_as_a_notebook(monkeypatch, tmp_path):
    notebook = nbformat.read(ROOT / "examples" / "tour.ipynb", as_version=4)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    kinds = [output["output_type"] for cell in notebook.cells for output in cell.get("outputs", ())]
    assert kinds.count("execute_result") == 2 and kinds.count("display_data") == 1
    text = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert float(re.search(r"([\d.]+)% of the held out", text)[1]) > 80


@pytest.mark.parametrize("page", RUN)
def test_code_runs_in_order_and_prints_what_the_page_says(page, capsys, monkeypatch, tmp_path):
    """In one folder, as a reader would run it; without bfloat16, what names it is left out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT)  # where examples and symbols are, whatever tests of that name were collected
    namespace = {}
    for language, code, printed in blocks(page):
        if "bfloat16" in code and not runs_bfloat16():
            continue
        if language == "python":
            exec(compile(code, str(page), "exec"), namespace)
            assert printed in (None, capsys.readouterr().out)
        elif commands(code) is not None:
            for args in commands(code):
                code, out, _ = run(*args)
                assert code == 0 or (code == 1 and args[0] == "doctor"), args  # this machine may lack the hardware
                print(out, end="")
            assert stripped(printed) in (None, stripped(capsys.readouterr().out))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_imports_mxmp_before_mxnet_and_links_lead_to_files(page):
    """Else it fails on Python 3.12 or with numpy 1.24; a page's Python is one program, each script in a shell another."""
    programs = [code for language, code, _ in blocks(page) if language == "sh"]
    programs.append("".join(code for language, code, _ in blocks(page) if language == "python"))
    imports = [re.findall(r"^(?:import|from) (mxmp|mxnet)\b", program, re.MULTILINE) for program in programs]
    assert "mxnet" not in [names[0] for names in imports if names] or page.stem == "python"  # tells of scripts that do not
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert not [link for link in links if link != "gallery/index.rst" and not (page.parent / link).exists()]  # that is built


def headings(page):
    """Return the anchors of a page's headings, as Sphinx and GitHub make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#{1,3} (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\(.*?\)", "", title).lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_a_part_of_a_page_lead_to_one_of_its_headings(page):
    """Sphinx warns of none, as it would of links to files beside docs/ too."""
    links = re.findall(r"\]\((?!https?://)([^)#]*\.md|)#([^)]+)\)", page.read_text(encoding="utf-8"))
    assert not [(file, part) for file, part in links if part not in headings((page.parent / file) if file else page)]


def messages_of_the_code():
    """Return all texts in the code of mxmp, blanks as one; a line break stands for each value that is put in."""
    for module in (ROOT / "mxmp").rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "\n" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_the_page_of_errors_quotes_messages_of_the_code():
    """Those of MXNet and of Python left out."""
    page = (DOCS / "guides" / "troubleshooting" / "errors.md").read_text(encoding="utf-8")
    quoted = [line for block in re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) for line in block.splitlines()]
    own = [re.sub(r"^\w+: ", "", line) for line in quoted if not re.match("AttributeError|MXNetError", line)]
    known = [re.sub("[ ]+", " ", text) for text in messages_of_the_code()]
    parts = {part.strip() for line in own for part in line.split("...") if len(part.strip()) > 3}
    assert len(own) > 25 and not sorted(part for part in parts if not any(part in text for text in known))
