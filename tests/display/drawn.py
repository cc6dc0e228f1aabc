"""Blocks of a page as a fragment of HTML."""

from mxmp.display import Section
from mxmp.display.page import fragment


def drawn(*blocks):
    return fragment("t", [Section("s", blocks)])
