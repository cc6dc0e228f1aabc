"""What a bounded dictionary keeps."""

from __future__ import annotations

from mxmp.recent import Recent


def test_recent_forgets_what_was_used_longest_ago():
    recent = Recent(2)
    recent.keep("a", 1)
    recent.keep("b", 2)
    assert recent.find("a") == 1
    recent.keep("c", 3)
    assert recent.items() == {"a": 1, "c": 3} and recent.find("b") is None
    recent.keep("a", 4)
    assert list(recent.items()) == ["c", "a"]


def test_recent_keeps_only_what_is_wanted():
    recent = Recent(4)
    for number in range(4):
        recent.keep(number, number)
    recent.keep_only(lambda value: value % 2 == 0)
    assert recent.items() == {0: 0, 2: 2}
