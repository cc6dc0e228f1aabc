"""Changes of a user's objects that are whole or none, wherever they are interrupted."""

from __future__ import annotations

import contextlib
from typing import Any, Iterable, Iterator


@contextlib.contextmanager
def all_or_none(objects: Iterable[Any]) -> Iterator[None]:
    """Give objects their present class and attributes back if anything ends this context early; None is left out.

    What an attribute refers to is not looked into: change it by giving the object another one.
    """
    before = [(each, type(each), dict(vars(each))) for each in objects if each is not None]
    try:
        yield
    except BaseException:
        for each, kind, attributes in before:
            present = vars(each)
            present.update(attributes)
            for name in present.keys() - attributes.keys():
                del present[name]
            if type(each) is not kind:
                each.__class__ = kind
        raise
