"""Pictures of the gallery: those that the examples draw in a full run, kept in `docs/images/gallery`.

`python examples/gan.py` writes ``gan.png``; copy it there.
"""

import re
import shutil
from pathlib import Path

AFTER_SPHINX_GALLERY = 900  # which writes the pages when the builder is there, at 500
PICTURES = Path(__file__).resolve().parents[1] / "images" / "gallery"


def copy_all(app):
    """Copy the picture of each page of the gallery over the one that sphinx-gallery gives all pages alike."""
    for picture in sorted(PICTURES.glob("*.png")):
        shutil.copy(picture, Path(app.srcdir, "gallery", "images", "thumb", f"sphx_glr_{picture.stem}_thumb.png"))


def show(app, docname, source):
    """Put the picture of a page of the gallery below its title."""
    folder, _, name = docname.rpartition("/")
    if folder == "gallery" and (PICTURES / f"{name}.png").exists():
        image = f"\n.. image:: /images/gallery/{name}.png\n   :alt: The picture that this script draws\n"
        source[0] = re.sub(r"^=+\n", lambda title: title[0] + image, source[0], count=1, flags=re.MULTILINE)


def setup(app):
    """Copy when the pages were written, and show when they are read."""
    app.connect("builder-inited", copy_all, priority=AFTER_SPHINX_GALLERY)
    app.connect("source-read", show)
    return {"parallel_read_safe": True}
