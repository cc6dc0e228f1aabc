"""Stands in for ``distutils.version``, which Python 3.12 removed: what MXNet and GluonCV ask of it."""

from __future__ import annotations

import functools
import re
from typing import List, Union


@functools.total_ordering
class LooseVersion:
    """A version as a list of numbers and words, which are compared one by one, with another's or that of a text."""

    def __init__(self, text: str) -> None:
        self.vstring = text
        self.version = _parts(text)

    def __str__(self) -> str:
        return self.vstring

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.vstring!r})"

    def __eq__(self, other: object) -> bool:
        return self.version == _version_of(other)

    def __lt__(self, other: object) -> bool:
        return self.version < _version_of(other)

    __hash__ = None  # type: ignore[assignment]  # as in distutils


class StrictVersion(LooseVersion):
    """As `LooseVersion`: MXNet compares numpy's version with 1.6.0, which may be one that distutils refused."""


def _version_of(other: object) -> List[Union[int, str]]:
    return other.version if isinstance(other, LooseVersion) else _parts(str(other))


def _parts(text: str) -> List[Union[int, str]]:
    parts = re.split(r"(\d+|[a-z]+|\.)", text)  # what stands between them is kept, such as the + of 1.13.1+cu117
    return [int(part) if part.isdecimal() else part for part in parts if part and part != "."]
