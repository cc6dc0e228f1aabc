"""Plots for the scripts in this folder. Each function writes one picture. `sample_data.py` has the data."""

from __future__ import annotations

from typing import Any, Collection, Mapping, Optional, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

SIZE = (5, 3.5)
MOST_NAMES = 20  # classes up to which a table of them has numbers


def curves(file: str, title: str, x: str, **panels: Any) -> None:
    """Draw one panel below the other: of each name a list of values, or lists by their labels.

    The panel ``loss_scale`` has an axis of powers of two.
    """
    figure = Figure(SIZE, tight_layout=True)
    axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    for axis, (name, lines) in zip(axes, panels.items()):
        labelled: Mapping[Optional[str], Sequence[float]] = lines if isinstance(lines, Mapping) else {None: lines}
        for label, values in labelled.items():
            axis.plot(range(1, len(values) + 1), values, label=label)
        axis.set_ylabel(name.replace("_", " "))
        if name == "loss_scale":
            axis.set_yscale("log", base=2)
        if None not in labelled:
            axis.legend(fontsize="small")
    axes[0].set_title(title)
    axes[-1].set_xlabel(x)
    figure.savefig(file)


def bars(
    file: str, title: str, values: Mapping[str, float], marked: Collection[str] = (), scale: str = "linear"
) -> None:
    """Draw a horizontal bar for each value, those that are marked in another colour."""
    figure = Figure(SIZE, tight_layout=True)
    axis = figure.subplots()
    axis.barh(list(values), list(values.values()), color=["C1" if name in marked else "C0" for name in values])
    axis.invert_yaxis()
    axis.set(title=title, xscale=scale)
    figure.savefig(file)


def magnitudes(file: str, title: str, shares: Mapping[int, float], zero: int, subnormal: int) -> None:
    """Draw the share of numbers in each power of two: up to ``zero`` they become 0, up to ``subnormal`` lose bits."""
    figure = Figure(SIZE, tight_layout=True)
    axis = figure.subplots()
    colors = ["C3" if power <= zero else "C1" if power <= subnormal else "C0" for power in shares]
    axis.bar(list(shares), list(shares.values()), color=colors)
    axis.set(title=title, xlabel="power of two; red becomes 0, orange loses bits", ylabel="share")
    figure.savefig(file)


def confusion(file: str, labels: Any, answers: Any) -> None:
    """Draw how often each class, a row, got each answer, a column."""
    table = np.zeros((int(max(np.max(labels), np.max(answers))) + 1,) * 2, int)
    np.add.at(table, (np.asarray(labels, int), np.asarray(answers, int)), 1)
    figure = Figure(SIZE, tight_layout=True)
    axis = figure.subplots()
    axis.imshow(np.log1p(table), cmap="Blues")
    if len(table) <= MOST_NAMES:
        axis.set(xticks=range(len(table)), yticks=range(len(table)))
        for row, column in zip(*np.nonzero(table)):
            color = "white" if row == column else "black"
            axis.text(column, row, table[row, column], ha="center", va="center", fontsize=7, color=color)
    axis.set(title=f"{np.trace(table) / table.sum():.2%} of {table.sum()} are right", xlabel="answer", ylabel="class")
    figure.savefig(file)


def detections(file: str, names: Sequence[str], images: Any, classes: Any, scores: Any, boxes: Any) -> None:
    """Draw six images (N, 3, H, W) with the boxes (N, K, 4), in pixels, whose scores (N, K, 1) are above a half."""
    figure = Figure(SIZE, tight_layout=True)
    axes = figure.subplots(2, 3).flat
    for axis, *arrays in zip(axes, images, classes, scores, boxes):
        image, *found = (array.asnumpy() for array in arrays)
        axis.imshow((image.transpose(1, 2, 0) - image.min()) / (image.max() - image.min()))
        for (number,), (score,), (left, top, right, bottom) in zip(*found):
            if number >= 0 and score > 0.5:
                axis.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor="yellow"))
                axis.text(left, top - 2, names[int(number)], color="yellow")
    for axis in axes.base.ravel():
        axis.axis("off")
    figure.savefig(file)


def pictures(file: str, images: Any, titles: Sequence[Any], columns: int = 5) -> None:
    """Draw gray images (N, H, W), each below its title. A pixel that is NaN is red."""
    figure = Figure(SIZE, tight_layout=True)
    axes = figure.subplots(-(-len(images) // columns), columns, squeeze=False).ravel()
    for axis, image, title in zip(axes, images, titles):
        gray = np.nan_to_num((image - np.nanmin(image)) / np.ptp(image[np.isfinite(image)]))
        axis.imshow(np.where(np.isnan(image)[..., None], (1.0, 0.0, 0.0), gray[..., None]))
        axis.set_title(title, fontsize="small")
    for axis in axes:
        axis.axis("off")
    figure.savefig(file)
