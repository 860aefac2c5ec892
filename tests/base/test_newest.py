"""A dictionary that keeps its newest entries."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from engine.base.memory import Newest


def test_a_new_entry_replaces_the_oldest() -> None:
    kept: Newest[str, int] = Newest(2)
    kept["a"], kept["b"] = 1, 2
    kept["b"] = 3  # not a new key
    assert kept == {"a": 1, "b": 3}
    kept["c"] = 4
    assert kept == {"b": 3, "c": 4}


def test_it_is_thread_safe() -> None:
    kept: Newest[int, int] = Newest(3)

    def fill(first: int) -> None:
        for n in range(first, first + 20_000):
            kept[n] = n

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fill, range(0, 80_000, 20_000)))
    assert len(kept) <= 3 + 4  # each thread may have added one meanwhile
    kept[-1] = -1
    assert len(kept) == 3
