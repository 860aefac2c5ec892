"""Untrusted files: each gives a one-sentence error, in bounded memory, and writes nothing."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hostile import (
    ACTING_TEXTS,
    ALL,
    HOSTILE_TEXTS,
    STRINGS,
    VALID,
    Place,
    outcome,
    put,
    value_at,
    whole,
)
from sessions_data import snapshot_maker
from slow_cases import one_in
from words import raises, says

from engine.base.errors import SnapshotError
from engine.base.schema import place_of
from engine.sessions.lookup import snapshot_of
from engine.sessions.snapshot import MAX_BYTES, dumps, loads
from engine.sessions.store import Store
from kernels.characters import hidden_in, visible


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


ROOT = Path(__file__).resolve().parents[2]

# Limit of the address space for reading a file. The largest case, a text of 32 MiB with one
# character that makes Python store it four bytes wide, needs about 400 MB; without the limits of
# the codec most cases would exceed it.
MEMORY_LIMIT_MB = 700


# -- files that need much memory, read in a process with a memory limit


def zeros_in_gzip() -> bytes:
    """Return a gigabyte of zeros as gzip, without building it in memory."""
    stream = zlib.compressobj(1, wbits=31)
    return b"".join([*(stream.compress(bytes(1 << 20)) for _ in range(1_000)), stream.flush()])


GREEDY = {
    "billion laughs in gzip": lambda: gzip.compress(b"[" + b"0," * (1 << 25) + b"0]", 1),
    "zeros in gzip": zeros_in_gzip,
    "gzip in gzip": lambda: gzip.compress(gzip.compress(bytes(1 << 26), 1), 1),
    "a string in gzip": lambda: gzip.compress(b'{"title": "' + b"x" * (1 << 26) + b'"}', 1),
    "a wide string": lambda: b'"' + b"x" * (MAX_BYTES - 8) + "\U0001f600".encode() + b'"',
    "empty lists": lambda: b"[" + b"[]," * 990_000 + b"[]]",
    "empty objects": lambda: b"[" + b"{}," * 990_000 + b"{}]",
    "many fields": lambda: b"{" + b",".join(b'"%d":0' % n for n in range(900_000)) + b"}",
    "short texts": lambda: b"[" + b'"ab",' * 1_900_000 + b"0]",
    "opening brackets": lambda: b"[" * (16 << 20),
    "a long number": lambda: b"9" * (16 << 20),
    "a larger file": lambda: bytes(MAX_BYTES + 1),
    "samples of texts": lambda: put(("evaluations", 0, "latency", "samples_us"), ["x"] * 1_000_000),
    "unknown fields everywhere": lambda: put(
        ("evaluations",), [{f"k{n}": n for n in range(200)}] * 4_000
    ),
    "evaluations of nothing": lambda: put(("evaluations",), [None] * 1_000_000),
    "samples": lambda: put(("evaluations", 0, "latency", "samples_us"), [1.5] * 1_900_000),
}

WATCHED = """
import resource, sys
sys.path[:0] = [sys.argv[1], sys.argv[2], sys.argv[2] + "/tests"]
import test_hostile
from engine.base.errors import SnapshotError
from engine.sessions.snapshot import loads
from engine.sessions.importers import import_measurements
data = test_hostile.GREEDY[sys.argv[3]]()
limit = test_hostile.MEMORY_LIMIT_MB << 20
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + limit, size + limit))
for read in (loads, import_measurements):
    try:
        read(data, name="greedy.json")
    except SnapshotError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and limits the address space")
@pytest.mark.parametrize("kind", one_in(15, list(GREEDY), slow=24))
def test_memory_of_reading_a_file_is_bounded(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(Path(__file__).parent), str(ROOT), kind],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    sentences = done.stdout.splitlines()
    assert len(sentences) == 2
    assert all(sentence.startswith("greedy.json") for sentence in sentences)


# -- wrong counts, types, truncation


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("error_maps", 0, "rows"), 10**9),
        (("error_maps", 0, "columns"), 256),
        (("error_maps", 0, "values"), [0.0] * 70_000),
        (("error_maps", 0, "evaluation"), 10**9),
        (("evaluations", 0, "problem", "batch"), 10**9),
        (("evaluations", 0, "problem", "seqlen"), 10**30),
        (("evaluations", 0, "passes", 0, "occupancy", "ctas"), 2**63),
        (("evaluations", 0, "latency", "low_us"), 5e-324),
        (("evaluations", 0, "correctness", "tolerance"), 0),
        (("evaluations", 0, "correctness", "tolerance"), 5e-324),
        (("evaluations", 0, "passes", 1, "resources", "registers_per_thread"), 300),
        (("evaluations", 0, "passes", 1, "resources", "threads_per_cta"), 1025),
        (("error_maps", 0, "values", 0), 1.8e308),
        (("timeline", 0, "evaluation"), 10**9),
        (("timeline",), [{"when": "2026-01-01T00:00:00Z", "what": ""}] * 20_001),
        (("schema_version",), 10**9),
        (("title",), "x" * 121),
        (("notes",), "x" * 100_001),
        (("sources", 0, "text"), "x" * 1_000_001),
        (("evaluations", 0, "log"), "x" * 65_537),
        (("evaluations", 0, "config"), {f"k{n}": n for n in range(65)}),
        (("evaluations", 0, "config"), {"../../x": 1}),
    ],
)
def test_wrong_counts_and_sizes_are_refused(path: Place, value: Any) -> None:
    assert outcome(put(path, value))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_are_not_finite_are_refused_everywhere(number: str) -> None:
    """Each number of the file is replaced in turn; the error names its place."""
    for path in ALL:
        if isinstance(value_at(path), (int, float)) and not isinstance(value_at(path), bool):
            data = put(path, "@@").replace(b'"@@"', number.encode())
            sentence = outcome(data)
            assert sentence, path
            if path[0] != "schema_version":
                assert place_of(path) in sentence


@pytest.mark.parametrize(
    "value",
    one_in(3, [None, True, 0, -1, 1e300, 10**30, "", "text", [], [[]], {}, {"a": 1}, [None]]),
)
def test_a_wrong_type_at_every_place(value: Any) -> None:
    """Any value at any place gives an error sentence or a snapshot that can be saved again."""
    accepted = 0
    for path in ALL:
        data = put(path, value)
        if outcome(data) == "":
            accepted += 1
            again = loads(data, name="x")
            assert loads(dumps(again), name="x") == again
    assert accepted < len(ALL) / 2


def test_a_missing_or_doubled_field_at_every_place() -> None:
    for path in ALL:
        if not path or not isinstance(path[-1], str):
            continue
        raw = whole()
        at: Any = raw
        for part in path[:-1]:
            at = at[part]
        if path[:2] != ("environment", "gpus") and path[0] != "environment":
            value = at.pop(path[-1])
            outcome(json.dumps(raw).encode())
            at[path[-1]] = value
        text = json.dumps({**at, "@@": 0})
        doubled = text.replace('"@@"', json.dumps(path[-1]))
        data = put(path[:-1], "@@").replace(b'"@@"', doubled.encode())
        assert says(outcome(data), "snapshot_field_twice"), path


@pytest.mark.parametrize("compress", [True, False])
def test_a_file_truncated_anywhere_is_refused(compress: bool) -> None:
    data = dumps(snapshot_maker(), compress=compress)
    for hundredth in range(100):
        assert outcome(data[: len(data) * hundredth // 100]), hundredth
    assert outcome(data) == ""


def test_every_flipped_bit_of_a_compressed_file_is_noticed() -> None:
    data = bytearray(dumps(snapshot_maker()))
    for position in range(10, len(data), 7):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        assert outcome(bytes(flipped)), position


# -- texts


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_markup_in_texts_is_escaped(text: str) -> None:
    """Each string is kept as it is where any text is allowed, else refused without repeating it."""
    kept = 0
    for path in STRINGS:
        data = put(path, text)
        sentence = outcome(data, name=text)
        if sentence == "":
            kept += 1
            written = json.loads(dumps(loads(data, name="x"), compress=False))
            for part in path:
                written = written[part]
            # The text of an evaluation in the timeline is computed.
            assert written == ("" if path == ("timeline", 0, "what") else text)
        else:
            assert "<" not in sentence
            assert "](" not in sentence
    assert kept > 10


@pytest.mark.parametrize("text", ACTING_TEXTS)
def test_control_and_bidi_characters_are_refused(text: str) -> None:
    for path in STRINGS:
        assert outcome(put(path, text)), path


@pytest.mark.parametrize(
    "text",
    [
        "int a;\rint b;",  # a terminal overwrites the first with the second
        "int a;\r",
        "\x0cint a;",
        "int \u200ba;",
        "int \ufeffa;",
        "int a\u3164;",  # a letter in C++ that looks like a space
        "// \U000e0041",
        *ACTING_TEXTS,
    ],
)
def test_invisible_or_misleading_characters_in_a_source_are_refused(text: str) -> None:
    for kind in ("sources", "attachments"):
        data = put((kind,), [{"name": "a.cu", "text": text, "sha256": sha256_of(text)}])
        with raises(SnapshotError, "string_pattern_mismatch", f"{kind}[0].text "):
            loads(data, name="x.json")
    assert hidden_in(visible(text)) == ""


def test_line_ends_and_tabs_are_allowed_in_a_source() -> None:
    text = "// µ ✓ ⚠️\r\n\tint a;\n\r\n"
    data = put(("sources",), [{"name": "a.cu", "text": text, "sha256": sha256_of(text)}])
    assert outcome(data) == ""
    assert visible(text) == text


def test_lone_surrogates_are_refused() -> None:
    for path in STRINGS:
        assert outcome(put(path, "\ud83d")), path


def test_hostile_field_names_are_not_printed() -> None:
    for name in [*HOSTILE_TEXTS, *ACTING_TEXTS, "x" * 10_000]:
        for path in ((), ("evaluations", 0), ("environment",)):
            at = value_at(path) | {name: 1}
            sentence = outcome(put(path, at), name="evil.json")
            assert sentence
            assert name not in sentence


@pytest.mark.parametrize(
    "name", [*HOSTILE_TEXTS, *ACTING_TEXTS, "", "x" * 10_000, "a\nb", "\ud83d"]
)
def test_hostile_file_names_are_escaped(name: str) -> None:
    sentence = outcome(b"{", name=name)
    assert sentence
    assert not set("<>[]()$`*{}\\/\n") & set(sentence.split(" is not valid")[0])


# -- nothing is written


def test_a_refused_upload_leaves_no_trace(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "own"), shipped=None, index_folder=tmp_path / "index")
    for data in (b"{", VALID[:-5], put(("title",), 5), put(("schema_version",), 99), b""):
        with pytest.raises(SnapshotError):
            store.save(snapshot_of(data, name="../../evil.json"))
    assert list(tmp_path.iterdir()) == []


def test_hostile_files_in_the_folder_are_listed_as_damaged(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "own"), shipped=None, index_folder=tmp_path / "index")
    good = store.save(snapshot_maker())
    folder = Path(store.url)
    marker = b'{"format":"attune-snapshot","schema_version":1,"summary":'
    (folder / "a.json").write_bytes(marker + b'{"id":"' + b"x" * 20_000)
    (folder / "b.json.gz").write_bytes(gzip.compress(marker + b"[" * 5_000))
    (folder / "c.json").write_bytes(put(("summary",), {"title": "<script>"}))
    (folder / "d.json").symlink_to("/dev/zero")
    (folder / "e.json").symlink_to(folder / "nowhere")
    infos = {info.name: info for info in store.list()}
    assert set(infos) == {good, "a.json", "b.json.gz", "c.json"}
    assert infos["a.json"].damage
    assert infos["b.json.gz"].damage
    # A summary, as files before version 11 have it, is not read.
    assert infos["c.json"].title == "Test data: KV-split on an L4"
