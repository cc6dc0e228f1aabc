"""Small files of every format that the scripts read."""

from __future__ import annotations

import gzip
import io
import struct

import mxnet as mx
import numpy as np
from PIL import Image


def idx(array):
    """Return an array of bytes as an idx file."""
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder, counts=(24, 8), packed=True, side=28):
    """Write the four files of MNIST; return images and labels of training."""
    rng = np.random.RandomState(0)
    folder.mkdir(exist_ok=True)
    written = []
    for kind, count in zip(("train", "t10k"), counts):
        images = rng.randint(0, 256, (count, side, side)).astype(np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, array in ((f"{kind}-images-idx3-ubyte", images), (f"{kind}-labels-idx1-ubyte", labels)):
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
        written.append((images, labels))
    return written[0]


def write_cifar(folder, count=4):
    """Write the six binary batches of CIFAR-10; return images and labels of all five for training."""
    rng = np.random.RandomState(0)
    folder.mkdir(parents=True, exist_ok=True)
    images = rng.randint(0, 256, (6 * count, 3, 32, 32)).astype(np.uint8)
    labels = rng.randint(0, 10, 6 * count).astype(np.uint8)
    records = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    for name, part in zip(names, np.split(records, 6)):
        part.tofile(folder / name)
    return images[: 5 * count], labels[: 5 * count]


def color(label, side=12, width=None):
    """Return an image (H, W, 3) whose red says what class it is of."""
    image = np.full((side, width or side, 3), 40 * label, np.uint8)
    image[..., 1] = np.arange(side)[:, None]  # green says how far down, blue how far right
    image[..., 2] = np.arange(width or side)[None, :]
    return image


def write_folder(folder, classes=("ant", "bee", "cow"), count=5):
    """Write PNGs of each class into a folder of its own."""
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(color(label)).save(folder / name / f"{number}.png")


def write_records(path, labels, side=12):
    """Write a record file with a PNG for each label."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = mx.recordio.MXRecordIO(str(path), "w")
    for number, label in enumerate(labels):
        header = mx.recordio.IRHeader(0, float(label), number, 0)
        png = io.BytesIO()
        Image.fromarray(color(label, side)).save(png, "png")
        record.write(mx.recordio.pack(header, png.getvalue()))
    record.close()
