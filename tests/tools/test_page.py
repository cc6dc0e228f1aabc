"""The table of docs/gpu.md has the figures of the ratchet, which tests/gpu_record hold to the record."""

from __future__ import annotations

import pytest

from tools import gpu_page


def test_the_page_says_what_steps_launch():
    page = gpu_page.PAGE.read_text(encoding="utf-8")
    assert gpu_page.written(page) == page, "docs/gpu.md differs: python -m tools.gpu_page writes its table anew"
    assert gpu_page.written(page.replace("| ResNet-50 | ", "| ResNet-50 | 9")) == page
    with pytest.raises(ValueError, match=r"gpu\.md: there are 0 tables with the header"):
        gpu_page.written("nothing")
