"""Show results of mxmp in JupyterLab, and take pictures of them: ``make look-jupyter``.

The notebook runs in this environment. JupyterLab only shows it, from an environment of its own, on the loopback
interface. Chromium takes a picture in JupyterLab's light theme and one in its dark theme, while the system has the
other one.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.display import browser

PORT = 8899
HEIGHT = 14000  # Of the window: JupyterLab makes cells when they are seen.
SECONDS = 60  # The longest that the server may take to answer, and the page to show all cells.
CELLS = (
    "import mxmp, mxnet as mx\n"
    "net = mx.gluon.model_zoo.vision.mobilenet_v2_0_25(classes=10, prefix='net_')\n"
    "net.initialize(mx.init.Xavier())\n"
    "batch, loss = mx.nd.random.uniform(shape=(2, 3, 64, 64)), mx.gluon.loss.L2Loss()\n"
    "mxmp.gluon.convert(net, 'O1')(batch)\n"
    "mxmp.gluon.report(net)",
    "mxmp.diagnose.compare(net, batch)",
    "mxmp.diagnose.explain(net, batch * 1e6)",
    "mxmp.diagnose.measure_ranges(net, batch)",
    "mxmp.diagnose.measure_gradients(net, (batch, mx.nd.ones((2, 10))), loss=loss)",
    "mxmp.tune.compare_speed(net, batch, ['float32', 'O1'], seconds=1)",
    "mxmp.diagnose.doctor('O1')",
    "import tempfile\n"
    "run = tempfile.mkdtemp()\n"
    "mxmp.gluon.report(net).save(f'{run}/report.json')\n"
    "trainer = mxmp.gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 1e-3})\n"
    "with mxmp.diagnose.CSVLogger(run, every=1).attach(trainer):\n"
    "    for _ in range(20):\n"
    "        with mx.autograd.record(), trainer.scale_loss(loss(net(batch), mx.nd.ones((2, 10)))) as scaled:\n"
    "            mx.autograd.backward(scaled)\n"
    "        trainer.step(2)\n"
    "mxmp.diagnose.read_run(run)",
)


def main(jupyter: str, out: str) -> None:
    """Write ``light.png`` and ``dark.png`` to a folder; ``jupyter`` is the folder of JupyterLab's programs."""
    formats: Any = nbformat  # which has no types
    notebook = formats.v4.new_notebook(cells=list(map(formats.v4.new_code_cell, CELLS)))
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": os.getcwd()}}).execute()
    with tempfile.TemporaryDirectory() as home:
        formats.write(notebook, f"{home}/look.ipynb")
        environ = {**os.environ, **{f"JUPYTER_{name}_DIR": home for name in ("CONFIG", "DATA", "RUNTIME")}}
        theme = Path(home, "settings", "@jupyterlab", "apputils-extension", "themes.jupyterlab-settings")
        theme.parent.mkdir(parents=True)
        environ["JUPYTERLAB_SETTINGS_DIR"] = f"{home}/settings"
        program = str(Path(jupyter, "jupyter").absolute())
        subprocess.run([program, "trust", f"{home}/look.ipynb"], env=environ, check=True)
        environ["JUPYTER_TOKEN"] = token = secrets.token_hex()
        options = "--allow-root", "--no-browser", f"--port={PORT}", "--ServerApp.port_retries=0"
        server = subprocess.Popen([program, "lab", *options], cwd=home, env=environ, stderr=subprocess.DEVNULL)
        try:
            _wait(f"http://127.0.0.1:{PORT}/api")
            for name in ("Light", "Dark"):
                theme.write_text(json.dumps({"theme": f"JupyterLab {name}"}), encoding="utf-8")
                with browser.started("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1") as page:
                    address = f"http://127.0.0.1:{PORT}/doc/tree/look.ipynb?token={token}"
                    page.go(address, dark=name == "Light", height=HEIGHT)
                    page.wait("", f"document.querySelectorAll('.mxmp').length == {len(CELLS)}", SECONDS)
                    time.sleep(3)  # until the theme is there
                    page.browser.save_screenshot(f"{out}/{name.lower()}.png")
        finally:
            server.terminate()
            server.wait()


def _wait(url: str) -> None:
    """Wait until a server answers."""
    for _ in range(SECONDS):
        with suppress(OSError), urllib.request.urlopen(url):
            return
        time.sleep(1)
    raise SystemExit(f"JupyterLab did not answer in {SECONDS} seconds")


if __name__ == "__main__":
    main(*sys.argv[1:])
