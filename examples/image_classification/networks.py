"""Networks by name: of Gluon's model zoo, of GluonCV, and of ``symbols``.

``resnet18_v1`` is looked up in that order by ``get_net``, and in ``symbols`` first by ``get_symbol``;
``gluon/resnet18_v1``, ``gluoncv/resnet18_v1`` and ``symbols/resnet18_v1`` say which one is meant.
"""

from __future__ import annotations

import difflib
from typing import Any, Optional, Sequence, Tuple

import click
import mxnet as mx
from mxmp.errors import mxnet_reason
from mxnet import gluon
from mxnet.gluon.model_zoo import vision

import symbols
from examples.common.initializers import name_initializers

ROOMS = ("gluon", "gluoncv", "symbols")
DATA = "data"
# How names of GluonCV's networks for videos end: by the data that they were trained on.
_VIDEO = ("_custom", "_kinetics400", "_kinetics700", "_ucf101", "_hmdb51", "_sthsthv2")

network_option = click.option(
    "--network",
    default="cifar_resnet20_v1",
    show_default=True,
    help="Any image classifier of Gluon's model zoo, GluonCV or symbols/; gluoncv/NAME says whose.",
)


def get_net(name: str, classes: int, shape: Tuple[int, ...]) -> gluon.HybridBlock:
    """Return a network that gives logits (N, classes); not initialized.

    Args:
        name: Its name, see above.
        classes: Number of classes.
        shape: Of an image, (C, H, W).
    """
    with mx.name.NameManager():  # parameters are called the same in every process
        network = _find(name, ROOMS, classes)
        if isinstance(network, mx.sym.Symbol):
            _check(name, network, classes, shape)
            return _without_head(network)
        _check(name, _trace(name, network), classes, shape)
        return network


def get_symbol(name: str, classes: int, shape: Tuple[int, ...]) -> Any:
    """Return a symbol whose output is ``softmax``, with inputs ``data`` and ``softmax_label``."""
    with mx.name.NameManager():
        network = _find(name, ROOMS[::-1], classes)
        if not isinstance(network, mx.sym.Symbol):
            network = mx.sym.SoftmaxOutput(_trace(name, network), name="softmax")
    _check(name, network, classes, shape)
    return network


def _find(name: str, rooms: Sequence[str], classes: int) -> Any:
    """Return a network of the first room that has one of this name: a block, or a symbol."""
    room, _, short = name.rpartition("/")
    if room and room not in ROOMS:
        raise click.UsageError(f"--network {name}: expected {', '.join(f'{room}/NAME' for room in ROOMS)}, or NAME.")
    for each in [room] if room else rooms:
        network = _MAKERS[each](short, classes)
        if network is not None:
            return network
    near = difflib.get_close_matches(short, {*_gluoncv_names(), *symbols.NETWORKS})
    hint = f"; the nearest are {', '.join(near)}" if near else ""
    raise click.UsageError(f"--network {name}: there is no such network{hint}.")


def _from_gluon(name: str, classes: int) -> Optional[gluon.HybridBlock]:
    try:
        return vision.get_model(name, classes=classes)
    except ValueError:  # it has no list of its names
        return None


def _from_gluoncv(name: str, classes: int) -> Optional[gluon.HybridBlock]:
    if name not in _gluoncv_names():
        return None
    from gluoncv.model_zoo import get_model

    try:
        # Detectors and the like would fetch weights of their base otherwise, before they are refused.
        return get_model(name, classes=classes, pretrained_base=False)
    except (TypeError, Warning) as e:
        if isinstance(e, TypeError) and "'pretrained_base'" not in str(e):
            raise click.UsageError(f"--network {name}: GluonCV makes no classifier of it: {e}") from e
    return get_model(name, classes=classes)


def _from_symbols(name: str, classes: int) -> Any:
    return symbols.get_symbol(name, num_classes=classes) if name in symbols.NETWORKS else None


_MAKERS = {"gluon": _from_gluon, "gluoncv": _from_gluoncv, "symbols": _from_symbols}


def _gluoncv_names() -> Sequence[str]:
    """Return the names of GluonCV's networks, but for those that read videos and would fetch weights of their base."""
    from gluoncv.model_zoo import get_model_list  # takes a second: only where it is asked for

    return [name for name in get_model_list() if not name.endswith(_VIDEO)]


def _without_head(symbol: Any) -> gluon.SymbolBlock:
    """Return the network before a symbol's loss head as a block."""
    net = gluon.SymbolBlock(symbol.get_children()[0], mx.sym.Variable(DATA, dtype="float32"))
    name_initializers(net.collect_params())
    return net


def _trace(name: str, net: gluon.HybridBlock) -> Any:
    """Return the symbol of what a network gives, if that is one output."""
    try:
        logits = net(mx.sym.Variable(DATA))
    except Exception as e:  # whatever the code of a network raises that reads shapes, for example
        raise click.UsageError(f"--network {name}: it cannot be traced: {mxnet_reason(e)}") from e
    if not isinstance(logits, mx.sym.Symbol):
        raise click.UsageError(f"--network {name}: it gives several outputs, so it is no image classifier.")
    return logits


def _check(name: str, symbol: Any, classes: int, shape: Tuple[int, ...]) -> None:
    """Raise if a network does not give (N, classes) for images of a shape."""
    batch = (2, *shape)
    size = "x".join(map(str, shape))
    try:
        _, found, _ = symbol.infer_shape_partial(**{DATA: batch})
    except mx.MXNetError as e:
        raise click.UsageError(
            f"--network {name}: images of {size} do not fit it; try another --image-size, or images in color if these "
            f"are not: {mxnet_reason(e)}"
        ) from e
    if found != [(2, classes)]:
        raise click.UsageError(
            f"--network {name}: for images of {size} it gives {found}, expected [(2, {classes})]; it is no image "
            "classifier, or needs another --image-size."
        )
