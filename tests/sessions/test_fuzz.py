"""Random values, bytes and tables: each gives a one-sentence error or a valid snapshot."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hostile import ALL, HOSTILE_TEXTS, VALID, Place, import_outcome, outcome, places, put
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions_data import snapshot_maker

from engine.attention.evaluation import Evaluation
from engine.base.errors import SnapshotError
from engine.base.schema import decode
from engine.sessions.snapshot import dumps

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([*HOSTILE_TEXTS, "PASSED", "measured", "2026-01-01T00:00:00Z"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=8) | st.sampled_from(["problem", "latency", "values", "id"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(ALL), json_values)
def test_fuzz_a_value_anywhere(path: Place, value: Any) -> None:
    outcome(put(path, value))


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_fuzz_bytes(data: st.DataObject) -> None:
    """Random edits of a valid file, compressed or not, and random bytes."""
    base = data.draw(st.sampled_from([VALID, dumps(snapshot_maker()), b""]))
    start = data.draw(st.integers(0, len(base)))
    stop = data.draw(st.integers(start, min(len(base), start + 50)))
    edited = base[:start] + data.draw(st.binary(max_size=30)) + base[stop:]
    outcome(edited)
    import_outcome(edited)


@settings(deadline=None, max_examples=150)
@given(json_values)
def test_fuzz_an_evaluation(value: Any) -> None:
    with pytest.raises(SnapshotError):
        decode(Evaluation, value)


IMPORTED: list[Any] = [
    [{"S": 1, "kernel_us": 1, "x": 2}],
    {
        "kernel_name": "k",
        "tune_params_keys": ["a"],
        "cache": {"1": {"a": 1, "time": 1, "times": [1, 2], "timestamp": "2026-01-01"}},
    },
    {
        "devices": [{"id": 0, "name": "d"}],
        "benchmarks": [
            {
                "name": "b",
                "states": [
                    {
                        "device": 0,
                        "axis_values": [{"name": "S", "value": "4"}],
                        "summaries": [
                            {
                                "tag": "nv/cold/time/gpu/mean",
                                "data": [{"name": "value", "value": "1e-6"}],
                            }
                        ],
                    }
                ],
            }
        ],
    },
]


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_fuzz_the_importers(data: st.DataObject) -> None:
    whole = copy.deepcopy(data.draw(st.sampled_from(IMPORTED)))
    path = data.draw(st.sampled_from([p for p in places(whole) if p]))
    at = whole
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = data.draw(json_values)
    import_outcome(json.dumps(whole).encode())


@settings(deadline=None, max_examples=150)
@given(st.text(alphabet='S,kernel_usb1250.\n"#-\r\t;x', max_size=200))
def test_fuzz_csv(text: str) -> None:
    for table in (text, "S,kernel_us,x\n" + text, '"ID","Kernel Name","Duration"\n' + text):
        import_outcome(table.encode())
