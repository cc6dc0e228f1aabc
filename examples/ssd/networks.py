"""GluonCV's SSD networks by name, and a small one for CPUs."""

from __future__ import annotations

import difflib
import re
from typing import Any, Sequence

import click
import mxnet as mx
from mxnet import gluon

import symbols
import symbols.ssd
from examples.common.initializers import name_initializers

SMALL = "ssd_96_resnet8"
"""Boxes and losses of GluonCV on the feature maps of `SMALL_SYMBOL`; no network of GluonCV itself."""
SMALL_SYMBOL = "ssd96_resnet8"
"""A network of ``symbols`` that a CPU trains in minutes."""

_CUSTOM = "_custom"


def get_detector(name: str, classes: Sequence[str]) -> gluon.HybridBlock:
    """Return a network of `gluoncv.model_zoo.SSD`, not initialized.

    Args:
        name: As GluonCV has it, without the data set: ``ssd_512_resnet50_v1``; or `SMALL`.
        classes: Names of the classes.
    """
    from gluoncv.model_zoo import get_model

    require_detector(name)
    with mx.name.NameManager():  # parameters are called the same in every process
        if name == SMALL:
            net = _small(classes)
        else:
            net = get_model(name + _CUSTOM, classes=list(classes), pretrained_base=False)
    name_initializers(net.collect_params())
    return net


def _small(classes: Sequence[str]) -> gluon.HybridBlock:
    from gluoncv.model_zoo.ssd import SSD

    def make_features(**kwargs: Any) -> gluon.HybridBlock:
        return gluon.SymbolBlock(symbols.ssd.get_feature_maps("resnet8", 96), mx.sym.Variable("data", dtype="float32"))

    return SSD(
        network=None,
        base_size=96,
        features=make_features,
        num_filters=None,
        sizes=(15, 24, 40, 64),
        ratios=3 * ((1, 2, 1 / 2, 3, 1 / 3),),
        steps=(8, 16, 32),
        classes=list(classes),
    )


def require_detector(name: str) -> None:
    """Raise unless GluonCV has an SSD of this name, or it is `SMALL`."""
    known = _names()
    if name not in known:
        near = difflib.get_close_matches(name, known)
        raise click.UsageError(
            f"--network {name}: there is no such SSD; {'the nearest are' if near else 'there are'} "
            f"{', '.join(near or known)}."
        )


def require_symbol(name: str) -> None:
    """Raise unless ``symbols`` has an SSD of this name."""
    known = [each for each, network in symbols.NETWORKS.items() if network.module is symbols.ssd and network.fixed]
    if name not in known:
        raise click.UsageError(f"--network {name}: there is no such SSD in symbols/; there are {', '.join(known)}.")


def image_size(name: str) -> int:
    """Return the height and width of images that a network is made for, in pixels."""
    found = re.match(r"ssd_?(\d+)_", name)
    if found is None:
        raise click.UsageError(f"--network {name}: its name does not begin with ssd and a size; give --image-size.")
    return int(found.group(1))


def _names() -> Sequence[str]:
    from gluoncv.model_zoo import get_model_list

    customs = (name for name in get_model_list() if name.startswith("ssd_") and name.endswith(_CUSTOM))
    return [SMALL, *sorted(name[: -len(_CUSTOM)] for name in customs)]
