"""The bounded dictionary: what it drops, and when."""

from __future__ import annotations

from mxmp.gluon.graphs import LRUCache


def test_the_least_recently_used_item_is_dropped():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert cache.items() == {"a": 1, "c": 3} and cache.get("b") is None
    cache.put("a", 4)
    assert list(cache.items()) == ["c", "a"]


def test_retain_keeps_the_values_of_a_predicate():
    cache = LRUCache(4)
    for number in range(4):
        cache.put(number, number)
    cache.retain(lambda value: value % 2 == 0)
    assert cache.items() == {0: 0, 2: 2}
