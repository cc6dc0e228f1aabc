"""The page of the notebook examples/tour.ipynb: its cells and their stored outputs."""

import base64
import json
from pathlib import Path

PAGE = "tour"


def printed(output, name, folder):
    """Return an output of a cell as Markdown; a picture is written to a folder of the gallery."""
    data = output.get("data", {})
    if "image/png" in data:
        (folder / f"{name}.png").write_bytes(base64.b64decode(data["image/png"]))
        return f"![What the cell above draws](gallery/images/{name}.png)"
    if "text/html" in data:
        return "````{raw} html\n" + "".join(data["text/html"]) + "\n````"
    text = "".join(output.get("text", data.get("text/plain", "")))
    lines = [line.rpartition("\r")[2] for line in text.splitlines()]  # of a progress bar its last state
    return "```text\n" + "\n".join(lines) + "\n```" if text.strip() else ""


def as_markdown(notebook, folder):
    """Return the cells of a notebook as Markdown."""
    parts = []
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../docs/", "]("))
        else:
            parts.append(f"```python\n{source}\n```")
            parts += [printed(output, f"{PAGE}_{number}", folder) for output in cell.get("outputs", ())]
    return "\n\n".join(filter(None, parts))


def read(app, docname, source):
    """Put the notebook behind the text of its page."""
    if docname == PAGE:
        folder = Path(app.srcdir, "gallery", "images")
        folder.mkdir(parents=True, exist_ok=True)
        notebook = json.loads(Path(app.srcdir, "../examples/tour.ipynb").read_text("utf-8"))
        source[0] = as_markdown(notebook, folder) + "\n\n" + source[0]


def setup(app):
    """Read the notebook when its page is read."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True}
