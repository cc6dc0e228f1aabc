"""Internals: a network prepared for inference apart from its parameters, and its report."""

from __future__ import annotations

import numpy as np

from mxmp.report import Removed
from mxmp.symbol import to_graph
from mxmp.symbol.for_inference import fold_params, prepare
from tests.symbol.inference_networks import run
from tests.symbol.test_for_inference import convert, small


def test_prepare_can_be_called_for_parameters_that_change():
    """The graph and the folds hold for any values: what a front that keeps parameters itself builds on."""
    network = small()
    found = prepare(network.symbol, frozenset([*network.args, *network.aux]))
    for factor in (1, 2, 3):
        args = {name: factor * value for name, value in network.args.items()}
        changed = network._replace(args=args)
        params = {**changed.params()[0], **changed.params()[1]}
        new, _ = fold_params(found.folds, params)
        expected = run(network.symbol, network.inputs, args, network.aux)
        results = run(found.symbol, network.inputs, new, {})
        np.testing.assert_allclose(results[0], expected[0], rtol=1e-5, atol=1e-5)
    assert to_graph(found.symbol) == found.graph


def test_a_report_of_unknown_sizes_keeps_its_own():
    report = convert(small(), "O2").report
    assert report.with_removed(Removed()) == report
