"""Fixtures for the app in-process: cache, sessions folder and job manager of the test process."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shared_builds import own_cache
from streamlit import config
from streamlit.components.v2 import manifest_scanner
from streamlit.runtime import metrics_util
from streamlit.testing.v1 import AppTest

from app.shared import machine, runs, widgets
from engine.jobs.manager import use_manager
from engine.sessions import store

ROOT = Path(__file__).resolve().parents[2]

# Streamlit collects garbage after each run of a page, which takes longer than the page itself.
config.set_option("runner.postScriptGC", False)
config.set_option("runner.magicEnabled", False)  # as in the app's config.toml
config.set_option("browser.gatherUsageStats", False)  # as in the config.toml
metrics_util._MAX_TRACKED_COMMANDS = 0  # counting takes a tenth of a page's time
# Every AppTest reads the metadata of all installed packages, which takes a third of a second.
manifest_scanner.scan_component_manifests = functools.cache(
    manifest_scanner.scan_component_manifests
)


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the cache folder that the tests of one process share, since compiling is slow."""
    return own_cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def sessions_dir(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture
def no_shipped_sessions(sessions_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the shipped snapshots: the store has only those that a test saves."""
    monkeypatch.setattr(store, "SHIPPED", sessions_dir / "nothing-ships")


@pytest.fixture(autouse=True)
def _isolated(
    cache_dir: Path, sessions_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(cache_dir))
    monkeypatch.setenv("ATTUNE_SESSIONS", str(sessions_dir))
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(sessions_dir.with_name("data")))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    # AppTest leaves the page table in __main__, where spawned processes would run it.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    machine.local_gpu.cache_clear()
    runs.error_maps_of.cache_clear()
    yield
    machine.local_gpu.cache_clear()


class _Failures(logging.Handler):
    """Collects the tracebacks that are logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(logging.Formatter().format(record))


@pytest.fixture(autouse=True)
def view_errors() -> Iterator[list[str]]:
    """Collect exceptions that a page shows as a message; fail if the test has not removed all."""
    failures, log = _Failures(), logging.getLogger(widgets.__name__)
    log.addHandler(failures)
    yield failures.found
    log.removeHandler(failures)
    assert not failures.found, failures.found[0]


@pytest.fixture(scope="session", autouse=True)
def _worker_ends() -> Iterator[None]:
    yield
    if (left := use_manager(None)) is not None:
        left.close()


@pytest.fixture
def open_app() -> Callable[..., AppTest]:
    """Open a page of the app, with URL parameters."""

    def open_(page: str = "", **params: str) -> AppTest:
        at = AppTest.from_file(str(ROOT / "app" / "page_table.py"), default_timeout=60)
        for name, value in params.items():
            at.query_params[name] = value
        # Before the first run AppTest uses the name of a page's file as its URL path.
        if page in ("", "tune", "ladder"):
            at.run()
        # The second run starts with the session state of the first, as every later one does.
        return at.switch_page(f"app_pages/{page}.py").run().run() if page else at

    return open_
