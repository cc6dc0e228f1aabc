"""Which bfloat16 kernels of oneDNN 2.4.4 are fast on which kind of processor: one table for each rewrite.

A kind without a row in a table is left as it is: nothing was measured there, or nothing gains.
"""

from __future__ import annotations

from typing import Dict, NamedTuple

from ...processors import AMD, AMX, EMULATED, INTEL, NO_BFLOAT16, UNKNOWN, Kind

NEVER = 2**31


class Channels(NamedTuple):
    """Numbers of channels for which convolutions have fast kernels.

    Attributes:
        in_channels: Input channels are a multiple of this.
        windows: From so many input channels on, where the kernel is larger than one pixel.
        pointwise: From so many, where it is one pixel.
        out_channels: Output channels are a multiple of this.
        out_channels_pointwise: Whether that holds for kernels of one pixel too.
        depthwise: Channels of a depthwise convolution are a multiple of this.
    """

    in_channels: int
    windows: int
    pointwise: int
    out_channels: int
    out_channels_pointwise: bool
    depthwise: int


CHANNELS: Dict[Kind, Channels] = {
    # ms: 3x3, 80 -> 192, 73 pixels: 51.4, as 96 7.2; 1x1, 144 -> 32, 56 pixels: 1.29, as 160 0.35; 3x3, 64 -> 24,
    # 56 pixels: 6.1, as 32 0.5. Intel Xeon with AMX, batch 8, 2 threads.
    AMX: Channels(
        in_channels=32,
        windows=32,
        pointwise=16,
        out_channels=16,
        out_channels_pointwise=True,
        depthwise=1,
    ),
    # ms: 3x3, 64 -> 24, 56 pixels: 4.15, as 32 0.86; 15 -> 64: 1.24, as 16 0.5; depthwise 3x3, 24: 1.23, as 32 0.39.
    # AMD EPYC (AVX512-BF16), batch 8, 2 threads.
    AMD: Channels(
        in_channels=2,
        windows=1,
        pointwise=NEVER,
        out_channels=16,
        out_channels_pointwise=False,
        depthwise=16,
    ),
}
"""The multiples to which frozen networks are padded, by kind of processor (`fit.find_fit`)."""

WINDOWS: Dict[Kind, float] = {
    # SqueezeNet 1.1, half of whose filters are of one pixel: 15.0 ms, with merged convolutions 12.4. Intel Xeon with
    # AMX, batch 8, 2 threads. Filters of one pixel take nine times their products in a window.
    AMX: 0.5,
}
"""Where convolutions of 1 x 1 and 3 x 3 become one in frozen networks (`frozen.merge_windows`), and the largest share
that filters of one pixel may have of all."""

NORMS = frozenset(
    {
        # BatchNorm with relu, and the convolution, ms: 256 channels of 56 x 56: 1.66, 0.74; 512 of 28 x 28: 0.79, 0.47;
        # 1024 of 14 x 14: 0.77, 0.43; DenseNet-121: 95, 74. Intel Xeon with AMX, batch 8, 2 threads.
        AMX,
    }
)
"""Where BatchNorm with relu becomes a depthwise convolution of one pixel in frozen networks (`frozen.find_norms`)."""

GROUPS: Dict[Kind, int] = {
    # ms of a step, depthwise and in groups: MobileNet 1.0 (224 pixels, batch 8) 271, 208; on a machine that others use
    # 362, 303 (float32: 316); 128 pixels, batch 16: 234, 218 (197), since 1x1 over few pixels is slow to train.
    # MobileNet 0.25: 0.60, 0.77 of float32's speed. MobileNet v2, whose relu6 is in float32, would lose: 514, 546.
    # Intel Xeon with AMX, 2 threads.
    AMX: 32,
}
"""How many channels of a depthwise convolution train fastest as one group (`channels.GroupDepthwise`).

A kernel takes so many inputs at a time. All channels are a multiple of it."""


class WeightRates(NamedTuple):
    """The seconds that a training step takes to multiply by a weight, and to cast it, forward and backward.

    Attributes:
        gain: Seconds that bfloat16 saves for each element of the weight and each row of a dense layer.
        small_cast: Seconds for each element of a weight of up to a million elements that is cast, with its gradient.
        large_cast: Likewise for four million elements and more.
        windows: From so many pixels of a batch on a convolution earns its casts, if its kernel is larger than one
            pixel. 0 means a decision by the rates.
        pointwise: Likewise where it is one pixel.
    """

    gain: float
    small_cast: float
    large_cast: float
    windows: int
    pointwise: int

    def cast(self, elements: int) -> float:
        """Return the seconds for each element of a weight that is cast."""
        share = min(max((elements - _SMALL) / (_LARGE - _SMALL), 0.0), 1.0)
        return self.small_cast + share * (self.large_cast - self.small_cast)


_SMALL, _LARGE = 2**20, 2**22  # elements

# A step has three products as large as that of the forward pass. Without casts of dense weights VGG-11's step (batch 4,
# 495 ms) takes 152 ms less, by the rates 128; AlexNet's (batch 16, 204 ms) 31, by the rates 31. AMD EPYC of family 26
# (AVX512-BF16), 2 threads.
_EPYC = WeightRates(
    gain=3 / 36e9 - 3 / 72e9,
    small_cast=1.2e-9,
    large_cast=1.2e-9,
    windows=0,
    pointwise=0,
)
WEIGHTS: Dict[Kind, WeightRates] = {
    **dict.fromkeys((NO_BFLOAT16, EMULATED, UNKNOWN), _EPYC),
    AMD: _EPYC,
    # Products run at 160 G multiply-adds a second in float32, at 100 G in bfloat16: no weight earns casts. Intel Xeon
    # with AMX off, 2 threads.
    INTEL: WeightRates(
        gain=3 / 160e9 - 3 / 100e9,
        small_cast=0.6e-9,
        large_cast=2.0e-9,
        windows=0,
        pointwise=0,
    ),
    # Dense layers, float32 and bfloat16 with casts, ms: 1024x1024 at 32 rows 1.26 and 1.37, at 64 1.93 and 1.63;
    # 4096x4096 at 128 rows 52 and 56, at 256 87 and 65. 3x3, 512 -> 512, 49 pixels of a batch: 5.1 and 3.7; 1x1,
    # 2048 -> 512, 49 pixels: 2.3 and 2.4, 392 pixels: 9.7 and 7.7. Intel Xeon with AMX on, 2 threads.
    AMX: WeightRates(
        gain=3 / 145e9 - 3 / 500e9,
        small_cast=0.6e-9,
        large_cast=2.0e-9,
        windows=49,
        pointwise=60,
    ),
}
"""From how many rows on a weight in float32 earns its casts in a training step (`slow_kernels.WidenSlowKernels`). Where
MXNet runs no bfloat16, or nothing was measured, the EPYC's rates stand, so that a graph is the same as there."""
