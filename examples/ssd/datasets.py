"""Detection data in files: the folders of PASCAL VOC and ImageDetRecord files, both read by GluonCV."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any, Iterator, Sequence, Tuple
from xml.etree import ElementTree

import click
import mxnet as mx
import numpy as np

from examples.common.batches import in_order, shuffled
from examples.common.records import find_record_file, read_labels
from examples.ssd.batches import MEAN, STD, Batch, Scenes, make_batch, to_input

VOC_HINT = "http://host.robots.ox.ac.uk/pascal/VOC/voc2007 has the archives; each unpacks to VOCdevkit/VOC2007."
_CUBIC = 2  # interpolation of OpenCV


class FileScenes(Scenes):
    """Images with boxes in files; scaled to one size, for training varied as in SSD's paper.

    The variations draw from Python's and numpy's global generators, which are as before afterwards.

    Args:
        training: A data set of GluonCV: images (H, W, 3), uint8, with their objects (m, 5) or (m, 6): left, top, right,
            bottom, class, whether difficult.
        held_out: Likewise.
        names: Of the classes.
        size: Height and width of what the network gets.
    """

    def __init__(self, training: Any, held_out: Any, names: Sequence[str], size: int) -> None:
        from gluoncv.data.transforms.presets.ssd import SSDDefaultTrainTransform

        self._training, self._held_out, self.count = training, held_out, len(training)
        self.names, self.size = tuple(names), size
        self._vary = SSDDefaultTrainTransform(size, size, mean=MEAN, std=STD)

    def train(self, batch_size: int, epoch: int, seed: int) -> Iterator[Batch]:
        """Yield the whole batches of an epoch, shuffled and varied as epoch and seed decide."""
        rng = np.random.RandomState([seed, epoch])
        for number, chosen in enumerate(shuffled(self.count, batch_size, rng)):
            with _seeded(int(np.random.RandomState([seed, epoch, number]).randint(2**31))):
                batch = make_batch(*zip(*(self._varied(*self._training[int(index)]) for index in chosen)))
            yield batch

    def test(self, batch_size: int) -> Iterator[Batch]:
        """Yield the images held out, in order; the last batch may be smaller."""
        for part in in_order(len(self._held_out), batch_size):
            yield make_batch(*zip(*(self._scaled(*self._held_out[index]) for index in part)))

    def _varied(self, image: mx.nd.NDArray, objects: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        if not len(objects):
            return self._scaled(image, objects)
        varied, moved = self._vary(image, objects)
        return varied.asnumpy(), moved

    def _scaled(self, image: mx.nd.NDArray, objects: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        height, width = image.shape[:2]
        scaled = mx.image.imresize(image, self.size, self.size, interp=_CUBIC).asnumpy()
        factors = np.array([self.size / width, self.size / height] * 2)
        return to_input(scaled), np.hstack([objects[:, :4] * factors, objects[:, 4:]])


class _Shaped:
    """A data set whose objects are (m, 5) or more also where there are none."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Tuple[mx.nd.NDArray, np.ndarray]:
        image, objects = self._dataset[index]
        return image, np.asarray(objects, dtype=np.float32).reshape(len(objects), -1 if len(objects) else 5)


def read_voc(folder: Path, size: int, names: Sequence[str] = ()) -> FileScenes:
    """Return the images of PASCAL VOC's folders: ``VOC*/ImageSets/Main/trainval.txt`` to train, ``test.txt`` held out.

    Args:
        folder: Holds ``VOC2007`` and, if it is to be trained on too, ``VOC2012``.
        size: Height and width of what the network gets.
        names: Of the classes; those of PASCAL VOC unless given. Objects of others are left out.
    """
    from gluoncv.data import VOCDetection

    if not folder.is_dir():
        raise click.ClickException(f"{folder}: there is no such folder. {VOC_HINT}")
    if (folder / "ImageSets" / "Main").is_dir():
        raise click.ClickException(f"{folder}: give the folder that {folder.name} lies in: --data-dir {folder.parent}")
    classes = tuple(name.lower() for name in names) or VOCDetection.CLASSES  # as GluonCV reads those of the files
    # GluonCV takes the names from the class, and refuses those without a letter.
    changes = {"CLASSES": classes, "_validate_class_names": lambda self, names: None}
    dataset = type("Dataset", (VOCDetection,), changes)
    parts = []
    for kind in ("trainval", "test"):
        splits = [(path.parents[2].name, kind) for path in sorted(folder.glob(f"VOC*/ImageSets/Main/{kind}.txt"))]
        if not splits:
            raise click.ClickException(f"{folder}: there is no VOC*/ImageSets/Main/{kind}.txt in it. {VOC_HINT}")
        try:
            images = dataset(root=str(folder), splits=splits)
        except (ElementTree.ParseError, AttributeError, ValueError) as e:
            raise click.ClickException(
                f"{folder}: the annotations of {kind} cannot be read: {e}; expected the size of each image, and name, "
                "difficult and bndbox of each object."
            ) from e
        if not len(images):
            raise click.ClickException(f"{folder}: VOC*/ImageSets/Main/{kind}.txt names no image.")
        if not any(map(len, images._label_cache)):  # those of all images
            there = sorted({each.text.strip() for each in _object_names(images) if each.text})
            raise click.ClickException(
                f"{folder}: {kind} has no object of a class of {', '.join(classes)}; it has objects of "
                f"{', '.join(there) or 'none'}: name those that you want with --class-names."
            )
        parts.append(_Shaped(images))
    return FileScenes(parts[0], parts[1], classes, size)


def _object_names(images: Any) -> Iterator[ElementTree.Element]:
    """Yield the names of all objects of a data set of GluonCV, as their files have them."""
    for item in images._items:
        yield from ElementTree.parse(images._anno_path.format(*item)).iterfind("object/name")


def read_records(folder: Path, size: int, names: Sequence[str] = ()) -> FileScenes:
    """Return the images of ImageDetRecord files: ``train.rec``, and ``test.rec`` or ``val.rec``, each with its .idx.

    Args:
        folder: Where they are.
        size: Height and width of what the network gets.
        names: Of the classes; numbers unless given. A sixth number of an object says whether it is difficult.
    """
    from gluoncv.data import RecordFileDetection

    paths = find_record_file(folder, ("train",)), find_record_file(folder, ("test", "val"))
    for path in paths:
        if not path.with_suffix(".idx").is_file():
            raise click.ClickException(f"{path.with_suffix('.idx')}: missing; im2rec.py writes it beside {path.name}.")
    classes = 1 + max(map(_largest_class, paths))
    if names and classes > len(names):
        raise click.ClickException(f"{folder}: the files have {classes} classes, but --class-names {len(names)}.")
    training, held_out = (_Shaped(RecordFileDetection(str(path))) for path in paths)
    return FileScenes(training, held_out, names or tuple(map(str, range(classes))), size)


def _largest_class(path: Path) -> int:
    """Return the largest class in a file, after a look at all its labels."""
    largest = -1
    for number, label in enumerate(read_labels(path)):
        head, width = (int(label[0]), int(label[1])) if len(label) > 1 else (0, 0)
        objects = label[head:]
        if head < 2 or width < 5 or not len(objects) or len(objects) % width:
            raise click.ClickException(
                f"{path}: record {number} has no boxes; expected its label to be the lengths of head and object, and "
                "class, left, top, right, bottom of each object, as ImageDetRecordIter takes it."
            )
        classes, corners = objects.reshape(-1, width)[:, 0], objects.reshape(-1, width)[:, 1:5]
        wrong = classes[(classes < 0) | (classes % 1 != 0)]
        if len(wrong):
            raise click.ClickException(f"{path}: record {number} has the class {wrong[0]:g}; expected 0, 1, 2, ...")
        if not ((corners >= 0) & (corners <= 1)).all() or not (corners[:, :2] < corners[:, 2:]).all():
            raise click.ClickException(
                f"{path}: record {number} has a box {corners.tolist()}; expected left < right and top < bottom, in "
                "parts of the image from 0 to 1."
            )
        largest = max(largest, int(classes.max()))
    return largest


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators that GluonCV's variations draw from, and bring them back."""
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
