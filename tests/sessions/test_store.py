"""The store: names, lists, search, no overwriting, and errors of a full or refusing disk."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from sessions_data import ENVIRONMENT, evaluation_maker, snapshot_maker
from words import raises, says

from engine.attention.problem import Problem
from engine.base.errors import AttuneError, BadInput, SnapshotError, StoreError, UnknownName
from engine.base.files import TEMPORARY_PREFIX
from engine.sessions import folders
from engine.sessions import store as store_module
from engine.sessions.folders import is_snapshot_name, names_for
from engine.sessions.lookup import snapshot_of
from engine.sessions.session import make_snapshot
from engine.sessions.snapshot import dumps, summarise
from engine.sessions.store import SHIPPED, Store, default_store, search

NAME = "20261121T024500Z_l4_2-variants_2-problems.json.gz"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "own"), shipped=None, index_folder=tmp_path / "index")


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Store]:
    url = f"memory://sessions-{uuid.uuid4().hex}"
    yield Store(url, shipped=None, index_folder=tmp_path / "index")
    import fsspec

    fsspec.filesystem("memory").rm(url.removeprefix("memory:/"), recursive=True)


@pytest.fixture(params=["store", "remote"])
def any_store(request: pytest.FixtureRequest) -> Store:
    found: Store = request.getfixturevalue(request.param)
    return found


def files(store: Store) -> set[str]:
    return {p.name for p in Path(store.url).rglob("*")}


def test_save_list_open_remove(any_store: Store) -> None:
    assert any_store.list() == []
    snapshot = snapshot_maker()
    name = any_store.save(snapshot)
    assert name == NAME
    (info,) = any_store.list()
    assert (info.name, info.title, info.shipped) == (NAME, snapshot.title, False)
    assert info.size_bytes == len(any_store.read(name)) > 500
    assert any_store.open(name) == snapshot
    any_store.remove(name)
    assert any_store.list() == []
    with raises(UnknownName, "snapshot_gone"):
        any_store.open(name)


def test_nothing_is_overwritten(any_store: Store) -> None:
    one = any_store.save(snapshot_maker(title="one"))
    two = any_store.save(snapshot_maker(title="two"))
    three = any_store.save(snapshot_maker(title="three"))
    assert [one, two, three] == [
        NAME,
        NAME.replace(".json", "_2.json"),
        NAME.replace(".json", "_3.json"),
    ]
    assert [any_store.open(n).title for n in (one, two, three)] == ["one", "two", "three"]


def test_an_equal_snapshot_is_stored_once(any_store: Store) -> None:
    name = any_store.save(snapshot_maker())
    assert any_store.save(snapshot_maker()) == name
    upload = dumps(snapshot_maker(), compress=False)
    assert any_store.save(snapshot_of(upload, name="../../etc/cron.d/x.json")) == name
    assert len(any_store.list()) == 1


def test_a_removed_name_is_kept_in_the_trash_beside_its_namesakes(store: Store) -> None:
    for title in ("one", "two"):
        store.remove(store.save(snapshot_maker(title=title)))
    trash = Path(store.url) / "trash"
    assert sorted(p.name for p in trash.iterdir()) == [f"2-{NAME}", NAME]
    assert store.list() == []


def test_a_damaged_upload_is_refused_and_nothing_is_written(store: Store) -> None:
    with raises(SnapshotError, "snapshot_cut_short"):
        store.save(snapshot_of(dumps(snapshot_maker())[:-20], name="x.json.gz"))
    assert files(store) == set()


@pytest.mark.parametrize(
    "name",
    [
        "../x.json",
        "a/b.json",
        "a\\b.json",
        "/etc/passwd",
        ".hidden.json",
        "x.json/../../y.json",
        "x",
        "x.json\n",
        "\x00.json",
        "C:x.json",
        "x" * 200 + ".json",
        "",
        "..",
        "<b>.json",
    ],
)
def test_only_names_of_the_store_are_opened(store: Store, name: str) -> None:
    store.save(snapshot_maker())
    for action in (store.open, store.read, store.remove):
        with raises(UnknownName, "snapshot_name"):
            action(name)
    assert len(store.list()) == 1


def test_names_sort_by_time_and_describe_their_content() -> None:
    one = snapshot_maker(evaluations=[evaluation_maker(device="NVIDIA L40S / test")])
    later = snapshot_maker(evaluations=[evaluation_maker()], updated="2027-01-01T00:00:00Z")
    assert next(names_for(one)) == ("20261121T024500Z_nvidia-l40s-test_v05_b1-h1-s128-d64.json.gz")
    assert next(names_for(later)) > next(names_for(one))


@pytest.mark.parametrize(
    "text",
    ["../../../etc/passwd", "a/b\\c", "x" * 390, "\u00e9\u4e2d\u6587", "", "..", "%2e%2e%2f"],
)
def test_names_from_foreign_text_are_plain(text: str) -> None:
    evaluation = evaluation_maker(device=text, variant=text or "v", problem=Problem(1, 1, 4, 4))
    for name in [*names_for(snapshot_maker(evaluations=[evaluation]))][:3]:
        assert is_snapshot_name(name)
        assert ".." not in name


def test_damaged_and_foreign_files_are_listed_as_such(store: Store) -> None:
    good = store.save(snapshot_maker())
    folder = Path(store.url)
    (folder / "cut.json.gz").write_bytes(dumps(snapshot_maker())[:200])
    (folder / "other.json").write_text('{"a": 1}')
    (folder / "notes.txt").write_text("not listed")
    (folder / ".saving-1-2").write_text("not listed")
    (folder / "folder.json").mkdir()
    for _ in range(2):  # first from the file, then from the index
        damage = {info.name: info.damage for info in store.list()}
        assert set(damage) == {good, "cut.json.gz", "other.json"}
        assert damage[good] == ""
        assert says(damage["cut.json.gz"], "snapshot_cut_short")
        assert says(damage["other.json"], "no_snapshot")


def test_a_rewritten_file_is_listed_by_what_is_in_it(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    rewritten = dumps(snapshot_maker(title="by hand"), compress=False)
    (folder / "by hand (1).json").write_bytes(b" " + rewritten)
    (info,) = store.list()
    assert info.title == "by hand"
    assert store.open(info.name).title == "by hand"


def titles(store: Store) -> list[str]:
    return [info.title for info in store.list()]


def indexes(folder: Path) -> list[Path]:
    return sorted((folder / "index").glob("*.sqlite"))


def in_index(folder: Path, command: str, *values: object) -> list[tuple[Any, ...]]:
    """Return the rows that the command selects in the only index."""
    (path,) = indexes(folder)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        return db.execute(command, values).fetchall()


def forge(folder: Path, title: str) -> None:
    """Give the only row of the index a title that its file does not have."""
    ((listed,),) = in_index(folder, "SELECT listed FROM info")
    assert "before" in listed
    in_index(folder, "UPDATE info SET listed = ?", listed.replace("before", title))


def test_a_saved_session_is_listed_without_reading_it(any_store: Store, tmp_path: Path) -> None:
    any_store.save(snapshot_maker(title="before"))
    forge(tmp_path, "from the index")
    assert titles(any_store) == ["from the index"]


def test_the_entry_of_a_saved_session_is_that_of_its_file(store: Store, tmp_path: Path) -> None:
    store.save(snapshot_maker())
    saved = in_index(tmp_path, "SELECT * FROM info")
    indexes(tmp_path)[0].unlink()
    assert [i.summary for i in store.list()] == [summarise(snapshot_maker())]
    assert in_index(tmp_path, "SELECT * FROM info") == saved


@pytest.mark.parametrize("how", ["in place", "replaced", "moved"])
def test_an_entry_of_a_changed_file_is_not_used(store: Store, tmp_path: Path, how: str) -> None:
    """Also if its size and time are those of the file before."""
    path = Path(store.url) / store.save(snapshot_maker(title="before"))
    forge(tmp_path, "forged")
    before, content = path.stat(), path.read_bytes()
    if how == "moved":
        path.rename(path.with_name("other.json.gz"))
    else:
        time.sleep(0.02)  # the clock of file systems has ticks
        changed = path if how == "in place" else tmp_path / "new"
        changed.write_bytes(content)
        os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
        changed.rename(path)
        now = path.stat()
        assert (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert titles(store) == ["before"]


def test_entries_of_removed_files_are_removed(store: Store, tmp_path: Path) -> None:
    names = [store.save(snapshot_maker(title=title)) for title in ("one", "two")]
    store.remove(names[0])
    assert titles(store) == ["two"]
    assert in_index(tmp_path, "SELECT name FROM info") == [(names[1],)]


@pytest.mark.parametrize("listed", [None, "", "{", "5", '{"summary":{"id":1}}', b"\xff", 7])
def test_a_damaged_entry_is_read_from_its_file_again(
    store: Store, tmp_path: Path, listed: object
) -> None:
    store.save(snapshot_maker(title="before"))
    in_index(tmp_path, "UPDATE info SET listed = ?", listed)
    assert titles(store) == ["before"]
    ((renewed,),) = in_index(tmp_path, "SELECT listed FROM info")
    assert "before" in renewed


def test_an_index_of_another_release_is_not_read(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is removed once nobody has changed it for 90 days and another one is made."""
    store.save(snapshot_maker(title="before"))
    forge(tmp_path, "forged")
    (mine,) = indexes(tmp_path)
    monkeypatch.setattr(store_module, "INDEX_LAYOUT", "schema 12, index 4")
    assert titles(store) == ["before"]
    (other,) = set(indexes(tmp_path)) - {mine}
    os.utime(mine, (0, 0))
    other.unlink()
    store.save(snapshot_maker(title="more"))
    assert indexes(tmp_path) == [other]


def test_files_are_read_within_a_limit_of_time(store: Store, tmp_path: Path) -> None:
    for title in ("one", "two", "three"):
        store.save(snapshot_maker(title=title))
    indexes(tmp_path)[0].unlink()
    counts = []
    for most_s in (0.0, 0.0, None):
        infos = store.list(most_s)
        assert len(infos) == 3
        assert not any(info.damage for info in infos)
        counts.append(sum(info.summary is not None for info in infos))
    assert counts == [1, 2, 3]


def test_a_list_grows_until_every_file_is_read(store: Store, tmp_path: Path) -> None:
    for title in ("one", "two", "three"):
        store.save(snapshot_maker(title=title))
    indexes(tmp_path)[0].unlink()
    steps = [sum(info.is_read for info in infos) for infos in store.growing_list(0.0)]
    assert steps == [1, 2, 3]


def test_a_list_grows_without_an_index(tmp_path: Path) -> None:
    """The index cannot be made where a file has its folder's name."""
    (tmp_path / "index").write_bytes(b"")
    store = Store(str(tmp_path / "own"), shipped=None, index_folder=tmp_path / "index")
    for title in ("one", "two", "three"):
        store.save(snapshot_maker(title=title))
    steps = [sum(info.is_read for info in infos) for infos in islice(store.growing_list(0.0), 4)]
    assert steps == [1, 2, 3]


def save_and_list(folder: Path, name: str) -> int:
    """Save ten sessions and list all after each; return how many were seen last."""
    store = Store(str(folder / "own"), shipped=None, index_folder=folder / "index")
    for number in range(10):
        store.save(snapshot_maker(title=f"{name} {number}"))
        store.list()
    return len(store.list())


def test_two_processes_save_and_list_at_once(store: Store, tmp_path: Path) -> None:
    with get_context("spawn").Pool(2) as pool:
        seen = pool.starmap(save_and_list, [(tmp_path, "one"), (tmp_path, "two")])
    assert max(seen) == 20
    expected = {f"{name} {number}" for name in ("one", "two") for number in range(10)}
    assert set(titles(store)) == expected
    rows = in_index(tmp_path, "SELECT listed FROM info")
    assert len(rows) == 20


@pytest.mark.slow
def test_a_locked_index_has_no_effect_on_results(store: Store, tmp_path: Path) -> None:
    store.save(snapshot_maker(title="one"))
    (path,) = indexes(tmp_path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        store.save(snapshot_maker(title="two"))
        assert set(titles(store)) == {"one", "two"}
    assert set(titles(store)) == {"one", "two"}


def test_the_index_follows_the_folder_and_may_be_deleted(store: Store, tmp_path: Path) -> None:
    name = store.save(snapshot_maker(title="before"))
    assert [i.title for i in store.list()] == ["before"]
    path = Path(store.url) / name
    path.write_bytes(dumps(snapshot_maker(title="after and longer")))
    assert [i.title for i in store.list()] == ["after and longer"]
    (index,) = (tmp_path / "index").glob("*.sqlite")
    for damage in (b"", b"not sqlite at all" * 100, index.read_bytes()[:700]):
        index.write_bytes(damage)
        assert [i.title for i in store.list()] == ["after and longer"]
        assert [i.title for i in store.list()] == ["after and longer"]
    index.unlink()
    path.unlink()
    assert store.list() == []


def test_an_unwritable_index_has_no_effect_on_results(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(str(tmp_path / "own"), shipped=None, index_folder=tmp_path / "file" / "below")
    store.save(snapshot_maker())
    assert len(store.list()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_index_has_no_effect_on_results(store: Store, tmp_path: Path) -> None:
    for title in ("before", "after"):
        store.save(snapshot_maker(title=title))
        assert title in titles(store)
        for path in ((tmp_path / "index"), *indexes(tmp_path)):
            path.chmod(0o555)
    assert len(in_index(tmp_path, "SELECT name FROM info")) == 1


def test_shipped_sessions_can_be_opened_and_not_removed(tmp_path: Path) -> None:
    shipped = tmp_path / "shipped"
    Store(str(shipped), shipped=None, index_folder=tmp_path / "i").save(snapshot_maker())
    store = Store(str(tmp_path / "own"), shipped=shipped, index_folder=tmp_path / "i")
    (info,) = store.list()
    assert info.shipped
    assert store.open(info.name) == snapshot_maker()
    with raises(BadInput, "shipped_snapshot"):
        store.remove(info.name)
    store.save(snapshot_maker(title="mine"))
    assert [(i.title, i.shipped) for i in store.list()] == [("mine", False)]


def test_the_setting_names_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_SESSIONS", str(tmp_path / "mine"))
    assert default_store().url == str(tmp_path / "mine")
    monkeypatch.setenv("ATTUNE_SESSIONS", "memory://shared")
    assert default_store().url == "memory://shared"
    monkeypatch.delenv("ATTUNE_SESSIONS")
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "kept"))
    assert default_store().url == str(tmp_path / "kept" / "sessions")
    monkeypatch.delenv("ATTUNE_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_store().url == str(tmp_path / "data" / "attune" / "sessions")
    assert SHIPPED.name == "sessions"


@pytest.mark.parametrize("url", ["nosuchprotocol://bucket/x", "s3://bucket-of-nobody/x"])
def test_an_unknown_kind_of_store_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with raises(StoreError, "store_not_opened"):
        Store(url)


def search_names(store: Store, **filters: str) -> list[str]:
    return sorted(info.title for info in search(store.list(), **filters))


def test_search(store: Store) -> None:
    def save(title: str, **changes: Any) -> None:
        when = changes.pop("updated", "2026-11-21T02:45:00Z")
        store.save(
            snapshot_maker(title=title, evaluations=[evaluation_maker(**changes)], updated=when)
        )

    save("one")
    save("two", device="H200", variant="v12")
    save("three", problem=Problem(16, 1, 128, 64), updated="2026-12-24T00:00:00+00:00")
    (Path(store.url) / "broken.json").write_text("{")
    broken = "broken.json"
    assert search_names(store) == sorted(["one", "two", "three", broken])
    assert search_names(store, text="BROKEN") == [broken]
    assert search_names(store, text=" TWO ") == ["two"]
    assert search_names(store, text="four splits beat") == ["one", "three", "two"]
    assert search_names(store, gpu="h2") == ["two"]
    assert search_names(store, variant="v05") == ["one", "three"]
    assert search_names(store, problem="s128 b1") == ["one", "two"]
    assert search_names(store, problem="B16") == ["three"]
    assert search_names(store, since="2026-12") == ["three"]
    assert search_names(store, until="2026-11-21") == ["one", "two"]
    assert search_names(store, gpu="L4", until="2026-11-21", text="one") == ["one"]
    assert search_names(store, text="nothing has this") == []


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.ENOSPC, "disk_full"),
        (errno.EDQUOT, "quota_used_up"),
        (errno.EROFS, "disk_read_only"),
        (errno.EACCES, "disk_permission"),
        (errno.EIO, "store_failed"),
    ],
)
@pytest.mark.parametrize("call", ["fdopen", "fsync", "link", "open"])
def test_disk_errors_give_messages(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str, code: int, said: str
) -> None:
    store.save(snapshot_maker(title="before"))
    before = files(store)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(folders.os, call, refuse)
        with raises(StoreError, "store_failed") as caught:
            store.save(snapshot_maker(title="after"))
    assert says(str(caught.value), said)
    assert (os.strerror(code).casefold() in str(caught.value)) == (code == errno.EIO)
    assert "ATTUNE_SESSIONS" in str(caught.value)
    assert files(store) == before
    assert [i.title for i in store.list()] == ["before"]


def test_a_file_system_without_hard_links(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here")

    monkeypatch.setattr(folders.os, "link", refuse)
    names = [store.save(snapshot_maker(title=title)) for title in ("one", "two")]
    assert len(set(names)) == 2
    store.remove(names[0])
    assert [i.title for i in store.list()] == ["two"]
    assert files(store) == {names[1], "trash", names[0]}


def test_a_store_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    store = Store(str(tmp_path / "file"), shipped=None, index_folder=tmp_path / "i")
    for action in (store.list, lambda: store.save(snapshot_maker())):
        with raises(StoreError, "store_failed"):
            action()
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(store: Store) -> None:
    Path(store.url).mkdir()
    Path(store.url).chmod(0o555)
    with raises(StoreError, "store_failed", store.url):
        store.save(snapshot_maker())
    assert store.list() == []


def test_leftovers_of_killed_saves_are_removed(store: Store) -> None:
    store.save(snapshot_maker())
    old, fresh = (Path(store.url) / f"{TEMPORARY_PREFIX}{x}" for x in ("1-a", "2-b"))
    for path in (old, fresh):
        path.write_text("half")
    os.utime(old, (0, 0))
    store.save(snapshot_maker(title="another"))
    assert not old.exists()
    assert fresh.exists()  # another process may still be writing it


def test_a_remote_that_fails_gives_a_one_sentence_error(tmp_path: Path) -> None:
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("ClientError: 403\nsecond line")

    class Refusing(MemoryFileSystem):  # type: ignore[misc]
        protocol = "refusing"
        ls = pipe_file = cat_file = refuse

    fsspec.register_implementation("refusing", Refusing, clobber=True)
    remote = Store("refusing://sessions", shipped=None, index_folder=tmp_path / "index")
    for action in (remote.list, lambda: remote.save(snapshot_maker()), lambda: remote.open(NAME)):
        with raises(AttuneError, "store_failed") as caught:
            action()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["{folder}", "memory://restore-{folder}"])
def test_a_removed_snapshot_can_be_restored(url, tmp_path):
    store = Store(url.format(folder=tmp_path / "store"), shipped=None, index_folder=tmp_path)
    name = store.save(snapshot_maker())
    data = store.read(name)
    kept = store.remove(name)
    store.restore(kept, name)
    assert store.read(name) == data
    with pytest.raises((StoreError, UnknownName)):
        store.restore(kept, name)  # it is no longer in the trash
    again = store.remove(name)
    store.save(snapshot_maker())
    with raises(StoreError, "snapshot_exists"):
        store.restore(again, name)
    with raises(UnknownName, "snapshot_name"):
        store.restore("../" + name, name)


def test_folders_are_accessible_only_to_their_owner(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "a" / "own"), shipped=None, index_folder=tmp_path / "index")
    name = store.save(snapshot_maker())
    store.list()
    store.remove(name)
    for folder in ("a", "a/own", "a/own/trash", "index"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700, folder


def test_snapshots_of_one_second_are_in_order_of_saving(store: Store) -> None:
    names = [
        store.save(make_snapshot([evaluation_maker(variant=variant)], environment=ENVIRONMENT))
        for variant in ("v11", "v01", "v05")  # not in the order of file names
    ]
    assert [info.name for info in store.list()] == names[::-1]
