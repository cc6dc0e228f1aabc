"""Small detection data in every format that the scripts read."""

from __future__ import annotations

import io
import struct

import mxnet as mx
import numpy as np
from PIL import Image

from tests.examples.image_classification.files import color

XML = "<annotation><size><width>{}</width><height>{}</height><depth>3</depth></size>{}</annotation>"
OBJECT = (
    "<object><name>{}</name><difficult>{}</difficult><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax>"
    "<ymax>{}</ymax></bndbox></object>"
)


def write_voc(folder, images, year=2007, kinds=("trainval", "test")):
    """Write the folders of PASCAL VOC.

    Args:
        folder: That of the years.
        images: Objects of each image, (name, difficult, left, top, right, bottom) from 1 on as VOC counts pixels.
        year: Which one.
        kinds: The lists that all images are in.
    """
    root = folder / f"VOC{year}"
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / name).mkdir(parents=True, exist_ok=True)
    names = [f"{number:06d}" for number in range(len(images))]
    for number, (name, objects) in enumerate(zip(names, images)):
        Image.fromarray(color(number % 6, 48, 64)).save(root / "JPEGImages" / f"{name}.jpg")
        text = XML.format(64, 48, "".join(OBJECT.format(*each) for each in objects))
        (root / "Annotations" / f"{name}.xml").write_text(text)
    for kind in kinds:
        (root / "ImageSets" / "Main" / f"{kind}.txt").write_text("\n".join(names))


def write_det_records(path, images, side=48):
    """Write an ImageDetRecord file with its index; ``images`` has (class, left, top, right, bottom) of each object."""
    record = mx.recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "w")
    for number, objects in enumerate(images):
        png = io.BytesIO()
        Image.fromarray(color(number % 6, side)).save(png, "png")
        label = np.float32([2, 5, *np.ravel(objects)])
        header = struct.pack(
            "<IfQQ", len(label), 0, number, 0
        )  # as mx.recordio.pack, which calls what numpy deprecated
        record.write_idx(number, header + label.tobytes() + png.getvalue())
    record.close()
