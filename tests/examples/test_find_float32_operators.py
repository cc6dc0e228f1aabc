"""The script that searches which operators a float16 deployment keeps in float32."""

from __future__ import annotations

import mxnet as mx

from examples.find_float32_operators import main, read_digits
from tests.examples.scripts import call


def test_it_prints_the_operators_and_writes_a_float16_model(tmp_path):
    code, text = call(main, "--steps", 60, "--tolerance", 0.01, "--export", tmp_path / "digits")
    assert code == 0
    assert "name:digits__mul0=float32" in text.replace(" ", "")
    assert "3 operators by 3 names, each of them is needed" in text
    params = mx.nd.load(str(tmp_path / "digits-0000.params"))
    assert {str(array.dtype.__name__) for array in params.values()} == {"float16", "float32"}


def test_pixels_are_those_of_an_image_file():
    images, labels = read_digits()
    assert images.shape == (1797, 1, 8, 8) and (images.min(), images.max()) == (0, 255) and len(labels) == 1797
