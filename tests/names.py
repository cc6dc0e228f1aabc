"""Names that MXNet takes and that others stumble over."""

import pytest
from hypothesis import strategies

ODD = {
    "accent": "café",
    "han": "层",
    "emoji": "😀",
    "line separator": "a\u2028b",
    "delete": "\x7f",
    "control": "\x01\x1b[31m",
    "backspace and form feed": "a\b\fb",
    "tab and lines": "a\tb\nc\rd",
    "quote and backslash": 'a"b\\u00e9\\',
    "markup": "[red]{x}%s",
}

EACH = pytest.mark.parametrize("name", ODD.values(), ids=ODD.keys())
ANY = strategies.text(strategies.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), min_size=1)
"""Everything that UTF-8 can say but a zero, where C's strings end."""
