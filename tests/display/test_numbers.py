"""Numbers, shares and sizes as they are read: three digits that count, a unit, no number where there is none."""

import math

import pytest

from mxmp.display import figure, share, size

NAN, INF = math.nan, math.inf
NUMBERS = {
    figure: {
        None: "–", -0.00123: "-0.00123", 1234.5: "1,234", 2**62: f"{2**62:,}", 999.4: "999", 999.6: "1,000", -999.6: "-1,000", 999_999.4: "999,999", 999_999.6: "1e+06", -0.0: "0",
        NAN: "NaN", INF: "∞", -INF: "−∞",
    },
    share: {None: "–", 0.034: "3.4 %", 1: "100 %", 9.996: "1,000 %", -0.0: "0 %", NAN: "NaN", INF: "∞"},
    size: {
        None: "–", 0: "0 bytes", 1: "1 bytes", 999: "999 bytes", 1000: "1 kB", 999_499: "999 kB", 999_999: "1 MB", 10**9 - 1: "1 GB",
        10**12 - 1: "1 TB", 10**15: "1,000 TB", -2048: "-2.05 kB", 1234567: "1.23 MB", NAN: "NaN", INF: "∞", -INF: "−∞",
    },
}  # fmt: skip
CASES = [(write, value, text) for write, texts in NUMBERS.items() for value, text in texts.items()]


@pytest.mark.parametrize("write, value, text", CASES)
def test_a_number_is_written_as_it_is_read(write, value, text):
    assert write(value) == text
