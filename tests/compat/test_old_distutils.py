"""The stand-in for distutils.version, against distutils itself or packaging."""

from __future__ import annotations

import itertools
import operator
import sys
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxmp.compat.old_modules import LooseVersion, StrictVersion

HAS_DISTUTILS = sys.version_info < (3, 12)
RELEASES = ["1.6.0", "1.9.1", "1.17.0", "1.23.5", "1.26.4", "2.0.0", "2.5.5", "10.0.1", "0.10.5"]
OPERATORS = [operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge]


@pytest.fixture
def reference():
    """Return what makes a version: distutils' class of the same name where Python has it, else packaging's."""

    def make(kind, text):
        if HAS_DISTUTILS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python 3.10 and 3.11 announce the end of distutils
                from distutils import version

                return getattr(version, kind.__name__)(text)
        from packaging.version import Version

        return Version(text)

    return make


@pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning")
@pytest.mark.parametrize("kind", [LooseVersion, StrictVersion])
@pytest.mark.parametrize("first", RELEASES)
def test_releases_compare_as_they_do_elsewhere(reference, kind, first):
    for second, compare in itertools.product(RELEASES, OPERATORS):
        expected = compare(reference(kind, first), reference(kind, second))
        assert compare(kind(first), kind(second)) == expected, (second, compare)


@pytest.mark.skipif(not HAS_DISTUTILS, reason="Python 3.12 has no distutils to compare with")
@pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning")
@given(st.text("0123456789.abrc+-_ V", min_size=1, max_size=12))
def test_any_text_has_the_parts_that_distutils_finds(text):
    from distutils import version

    assert LooseVersion(text).version == version.LooseVersion(text).version


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1.26.4", [1, 26, 4]),
        ("1.13.1+cu117", [1, 13, 1, "+", "cu", 117]),
        ("2.0.0rc1", [2, 0, 0, "rc", 1]),
        ("10", [10]),
    ],
)
def test_a_version_is_numbers_and_what_stands_between(text, parts):
    assert LooseVersion(text).version == parts


def test_a_number_and_a_word_do_not_compare():
    with pytest.raises(TypeError):
        _ = LooseVersion("1.a") < LooseVersion("1.1")
