"""Known times in shipped, own and open sessions, distinguished by the source of the kernel."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from compare_data import evaluation, latency, session
from made_up_history import MadeUpHistory

from engine.attention.config import find_variant
from engine.attention.evaluation import CALIBRATED, Latency
from engine.attention.problem import Problem
from engine.base import files
from engine.base.errors import Status
from engine.cuda_source.sources import read_sources
from engine.devices import find_device
from engine.history import KnownTime
from engine.history.known_time import are_comparable, newest_of, source_match, times_of
from engine.model.equations import Calibration
from engine.model.kernel import Kernel
from engine.sessions import known_times
from engine.sessions.known_times import KnownTimes
from engine.sessions.session import start_session
from engine.sessions.snapshot import dumps, summarise
from engine.sessions.store import CachedTimes, Store, packed
from kernels.variant import Dtype

L4_PROBLEM = Problem(1, 1, 128, 64)


def times_named(
    known: KnownTimes, name: str, config: dict[str, int], device: str
) -> list[KnownTime]:
    return [t for t in known.on(device) if t.name == name and dict(t.config) == config]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"), index_folder=tmp_path / "index")


def test_the_shipped_study_is_found_beside_its_sdpa(store: Store, tmp_path: Path) -> None:
    known = KnownTimes(store, tmp_path / "working")
    times = known.at(L4_PROBLEM, "L4")
    assert [(t.name, t.latency.median_us) for t in times] == [
        ("v01", 543.0),
        ("sdpa sdpa", 24.0),
        ("v01", 579.0),
    ]
    assert {t.stored_in for t in times} == {"shipped"}
    assert source_match(times[0], find_variant("v01")) == "source not recorded"
    assert times_named(known, "v01", {"block_n": 64}, "L4")
    assert not times_named(known, "v01", {"block_n": 32}, "L4")
    assert not known.at(L4_PROBLEM, "A10")


@pytest.mark.parametrize("compress", [True, False])
def test_a_wrong_summary_neither_hides_a_files_times_nor_adds_any(
    store: Store, tmp_path: Path, compress: bool
) -> None:
    """As files before version 11 have one."""
    measured = session(evaluation(100.0))
    predicted = session(evaluation(latency=latency(1.0, origin="predicted")))
    folder = Path(store.url)
    folder.mkdir()
    for name, saved, wrong in (
        ("hides.json", measured, {"origins": ["predicted"], "devices": ["T4"], "variants": []}),
        ("adds.json", predicted, {"origins": ["measured"]}),
    ):
        raw = json.loads(dumps(saved, compress=False))
        head = {"format": raw.pop("format"), "schema_version": raw.pop("schema_version") and 10}
        head["summary"] = summarise(saved).model_dump(mode="json") | wrong
        text = json.dumps(head | raw, ensure_ascii=False, separators=(",", ":")).encode()
        (folder / name).write_bytes(gzip.compress(text) if compress else text)
    known = KnownTimes(store, tmp_path / "working")
    times = times_named(known, "v05", {"num_splits": 4}, "L4")
    assert [(t.file, t.latency.origin) for t in times] == [("hides.json", "recorded")]
    summaries = {i.name: i.summary for i in store.list() if not i.shipped}
    assert summaries == {"hides.json": summarise(measured), "adds.json": summarise(predicted)}


def test_own_snapshots_and_open_sessions_are_read_when_they_appear(
    store: Store, tmp_path: Path
) -> None:
    known = KnownTimes(store, tmp_path / "working")
    assert not times_named(known, "v05", {"num_splits": 4}, "L4")
    name = store.save(session(evaluation(100.0)))
    working = start_session("Today", folder=tmp_path / "working")
    working.add(evaluation(90.0))
    known.refresh()
    saved, now = times_named(known, "v05", {"num_splits": 4}, "L4")
    assert (saved.latency.origin, saved.file, saved.stored_in) == ("recorded", name, "own snapshot")
    assert (now.latency.origin, now.session, now.stored_in) == ("measured", "Today", "open session")
    assert newest_of([saved, now]) is now
    assert not now.latency.samples_us
    working.add(evaluation(80.0, seqlen=256))
    known.refresh()
    assert len(times_named(known, "v05", {"num_splits": 4}, "L4")) == 3
    store.remove(name)
    working.discard()
    known.refresh()
    assert not times_named(known, "v05", {"num_splits": 4}, "L4")


def test_times_of_a_long_journal_are_read_incrementally(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path / "cache"))
    read: list[object] = []
    real_decode = known_times.decode
    monkeypatch.setattr(known_times, "decode", lambda *a: read.append(a[0]) or real_decode(*a))
    folder = tmp_path / "working"
    working = start_session("Today", folder=folder)
    working.add(evaluation(90.0), job_id="job-1")

    def times() -> list[float]:
        read.clear()
        found = times_named(
            KnownTimes(store, folder, cache_from_bytes=1), "v05", {"num_splits": 4}, "L4"
        )
        assert {t.session for t in found} == {working.title}
        return [t.latency.median_us for t in found]

    assert times() == [90.0]
    assert len(read) == 1
    assert times() == [90.0]
    assert not read
    files.append_event(
        working.path, json.loads(working.path.read_text().splitlines()[-1])
    )  # job-1 again
    working.edit(title="Tiling")
    working.add(evaluation(80.0))
    assert sorted(times()) == [80.0, 90.0]
    assert len(read) == 1
    for kept in (tmp_path / "cache" / "times").iterdir():
        kept.write_bytes(b"damaged")
    assert sorted(times()) == [80.0, 90.0]
    assert len(read) == 2


def test_predictions_and_times_of_wrong_results_are_not_known_times() -> None:
    predicted = evaluation(latency=latency(5.0, origin="predicted"))
    wrong = evaluation(latency=latency(5.0, origin="recorded"), status=Status.INCORRECT, reason="x")
    assert not times_of([predicted, wrong], session="s")


def test_only_times_of_the_same_source_calibrate(store: Store, tmp_path: Path) -> None:
    variant, device = find_variant("v01"), find_device("L4")
    sha = read_sources(variant.source).source_sha256
    config = variant.default_config()

    def calibrated(source_sha256: str, dtype: Dtype) -> Calibration | None:
        made = evaluation(543.0, "v01", config=config, source_sha256=source_sha256)
        name = store.save(session(made))
        known = MadeUpHistory(KnownTimes(store, tmp_path / "working"))
        problem = Problem(1, 8, 128, 64, dtype=dtype)
        calibration = known.calibration(Kernel.of(variant, device, config), problem)
        store.remove(name)
        return calibration

    calibration = calibrated(sha, "float16")
    assert calibration is not None
    assert calibration.points == 1
    assert calibrated("ab" * 32, "float16") is None
    assert calibrated(sha, "bfloat16") is None


def test_times_are_cached_in_the_index_until_the_file_changes(tmp_path: Path) -> None:
    """Saving caches them; with a damaged index the files are read again."""
    store = Store(str(tmp_path / "store"), shipped=None, index_folder=tmp_path / "index")
    name = store.save(session(evaluation(100.0)))
    (index,) = (tmp_path / "index").glob("*.sqlite")

    def seen() -> list[float]:
        known = KnownTimes(store, tmp_path / "working")
        return [t.latency.median_us for t in known.on("L4", name="v05") if t.file == name]

    def forge(times: str | None) -> None:
        with contextlib.closing(sqlite3.connect(index)) as db, db:
            db.execute("UPDATE info SET times = ?", (times,))

    forged = times_of([evaluation(70.0)], session="Forged", file=name)
    forge(packed(CachedTimes(times=forged)))
    assert seen() == [70.0]
    for damage in ("", "no times", None):
        forge(damage)
        assert seen() == [100.0]
    forge(packed(CachedTimes(times=forged)))
    index.write_bytes(b"no index" * 100)
    assert seen() == [100.0]
    forge(packed(CachedTimes(times=forged)))
    store.remove(name)
    other = store.save(session(evaluation(50.0)))
    (tmp_path / "store" / other).rename(tmp_path / "store" / name)
    assert seen() == [50.0]


@pytest.mark.parametrize("is_indexed", [True, False])
def test_reading_times_is_limited_and_continued_later(is_indexed: bool, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), shipped=None, index_folder=tmp_path / "index")
    for seqlen in (128, 256, 512):
        store.save(session(evaluation(100.0, seqlen=seqlen)))
    if not is_indexed:
        shutil.rmtree(tmp_path / "index")
    known = KnownTimes(store, tmp_path / "working", most_s=1e-9, at_once=1)
    left = []
    for _ in range(4):
        known.refresh()
        known.on("L4", name="v05")
        left.append(known.unread)
    assert left == [2, 1, 0, 0]
    assert {t.problem.seqlen for t in known.on("L4", name="v05")} == {128, 256, 512}


def test_the_newest_time_of_a_launch_is_used(store: Store, tmp_path: Path) -> None:
    for median_us in (100.0, 101.0, 102.0):
        store.save(session(evaluation(median_us)))
    known = KnownTimes(store, tmp_path / "working", most_of_a_launch=2)
    names = [info.name for info in store.list() if not info.shipped]
    assert [t.file for t in known.on("L4", name="v05")] == names[:2]


def test_calibrated_times_are_compared_only_with_calibrated_ones() -> None:
    plain = Latency("predicted", 10.0, 8.0, 12.0, "By machine code.")
    calibrated = Latency("predicted", 20.0, 19.0, 21.0, f"By machine code. {CALIBRATED} 3 points.")
    assert calibrated.basis == f"{plain.basis}, calibrated"
    assert not are_comparable(plain.basis, calibrated.basis)
    assert are_comparable(calibrated.basis, calibrated.basis)
    assert are_comparable(plain.basis, plain.basis)
