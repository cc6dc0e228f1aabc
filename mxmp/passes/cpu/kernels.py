"""Which bfloat16 kernels of oneDNN 2.4.4 are fast on which kind of processor: one table for each rewrite that asks.

A kind without a row in a table is left as it is: nothing was measured there, or nothing gains.
"""

from __future__ import annotations

from typing import Dict, NamedTuple

from ...processors import AMD, AMX, Kind

NEVER = 2**31


class Channels(NamedTuple):
    """Numbers of channels for which convolutions have fast kernels.

    Attributes:
        read: Of this are the input channels a multiple.
        windows: From so many input channels on, where the kernel is larger than one pixel.
        pointwise: From so many, where it is one pixel.
        given: Of this are the output channels a multiple.
        gives_pointwise: Whether that holds for kernels of one pixel too.
        depthwise: Of this are the channels of a depthwise convolution a multiple.
        figure: Milliseconds of what gains most, without and with such numbers.
        source: Where they were measured.
    """

    read: int
    windows: int
    pointwise: int
    given: int
    gives_pointwise: bool
    depthwise: int
    figure: str
    source: str


CHANNELS: Dict[Kind, Channels] = {
    AMX: Channels(
        read=32,
        windows=32,
        pointwise=16,
        given=16,
        gives_pointwise=True,
        depthwise=1,
        figure="3x3, 80 -> 192, 73 pixels: 51.4, as 96 7.2; 1x1, 144 -> 32, 56 pixels: 1.29, as 160 0.35; "
        "3x3, 64 -> 24, 56 pixels: 6.1, as 32 0.5",
        source="Intel Xeon with AMX, batch 8, 2 threads",
    ),
    AMD: Channels(
        read=2,
        windows=1,
        pointwise=NEVER,
        given=16,
        gives_pointwise=False,
        depthwise=16,
        figure="3x3, 64 -> 24, 56 pixels: 4.15, as 32 0.86; 15 -> 64: 1.24, as 16 0.5; depthwise 3x3, 24: 1.23, as 32 0.39",
        source="AMD EPYC (AVX512-BF16), batch 8, 2 threads",
    ),
}
"""The multiples to which frozen networks are padded, by kind of processor (`fit.find_fit`)."""
