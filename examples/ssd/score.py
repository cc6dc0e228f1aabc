"""Mean average precision, and a picture of what was found."""

from __future__ import annotations

import abc
import contextlib
from pathlib import Path
from typing import Any, ContextManager, Dict, Iterable, NamedTuple, Sequence, Tuple

import mxnet as mx
from matplotlib.figure import Figure

from examples.common.loop import Learner
from examples.common.plot import save
from examples.ssd.batches import Batch, Scenes, to_pixels

COLUMNS, ROWS = 4, 2
SHOWN = COLUMNS * ROWS
PICTURE = "detections.png"
SHOWN_FROM = 0.5  # score


class Detections(NamedTuple):
    """What a network found on N images; arrays on any device, float32.

    Attributes:
        classes: (N, K), -1 where there is nothing.
        scores: (N, K), from 0 to 1.
        boxes: (N, K, 4): left, top, right, bottom in pixels.
    """

    classes: mx.nd.NDArray
    scores: mx.nd.NDArray
    boxes: mx.nd.NDArray


class Detector(Learner):
    """A learner that finds objects on images.

    Attributes:
        scenes: What it is to learn.
    """

    scenes: Scenes

    @abc.abstractmethod
    def detect(self, batch: Batch) -> Detections:
        """Return what is found on the images of a batch."""

    def inference(self) -> ContextManager[Any]:
        """Return a context within which `detect` is called."""
        return contextlib.nullcontext()

    def evaluate(self, batches: Iterable[Batch]) -> Dict[str, float]:
        """Return the mean average precision on batches."""
        score = Score(self.scenes.names, self.scenes.size)
        with self.inference():
            for batch in batches:
                score.add(self.detect(batch), batch)
        return score.figures()

    def finish(self, folder: Path) -> Sequence[Tuple[str, Path]]:
        """Draw what is found on some images."""
        batch = next(iter(self.scenes.test(SHOWN)))
        with self.inference():
            draw_detections(batch, self.detect(batch), self.scenes.names, folder / PICTURE)
        return [("detections", folder / PICTURE)]


class Score:
    """The mean average precision of PASCAL VOC, from 2010 on, at an overlap of 0.5: GluonCV's VOCMApMetric.

    Args:
        names: Of the classes.
        size: Height and width of the images, which boxes are cut to.
    """

    def __init__(self, names: Sequence[str], size: int) -> None:
        from gluoncv.utils.metrics import VOCMApMetric

        self._metric = VOCMApMetric(iou_thresh=0.5, class_names=list(names))
        self._size = size

    def add(self, found: Detections, batch: Batch) -> None:
        """Add the detections of a batch; waits for them."""
        boxes = found.boxes.clip(0, self._size)
        wanted = (batch.boxes, batch.classes, batch.difficult)
        self._metric.update(*([part.asnumpy()] for part in (boxes, found.classes, found.scores, *wanted)))

    def figures(self) -> Dict[str, float]:
        """Return the mean over the classes that there are objects of, from 0 to 1."""
        _, values = self._metric.get()
        return {"mAP": float(values[-1])}


def draw_detections(batch: Batch, found: Detections, names: Sequence[str], path: Path) -> None:
    """Write a PNG with the first images of a batch and the boxes found on them; it says so if there are none."""
    from gluoncv.utils.viz import plot_bbox

    figure = Figure(figsize=(3 * COLUMNS, 3 * ROWS), tight_layout=True)
    places = figure.subplots(ROWS, COLUMNS).ravel()
    classes, scores, boxes = (part.asnumpy() for part in found)
    for place in places:
        place.axis("off")
    for number, (place, image) in enumerate(zip(places, to_pixels(batch.images[: len(places)]))):
        style = {"thresh": SHOWN_FROM, "class_names": list(names), "linewidth": 1.5, "fontsize": 8}
        plot_bbox(image, boxes[number], scores[number], classes[number], ax=place, **style)
    shown = slice(min(len(places), len(boxes)))
    if not ((scores[shown] >= SHOWN_FROM) & (classes[shown] >= 0)).any():
        figure.suptitle(f"Nothing was found on these images with a score of {SHOWN_FROM} or more; train longer.")
    save(figure, path)
