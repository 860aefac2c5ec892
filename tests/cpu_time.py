"""`pytest --cpu-time` prints the CPU time of each test file, independent of other load."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Generator

import pytest

_SHOWN = 25
_NAME = "cpu_s"


def _seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class CpuTime:
    """A plugin: each worker measures its tests, and the parent sums them by file."""

    def __init__(self) -> None:
        self._by_file: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._begin = _seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        done = yield
        item.user_properties.append((_NAME, _seconds() - self._begin))
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            file = report.nodeid.partition("::")[0]
            self._by_file[file] += sum(s for name, s in report.user_properties if name == _NAME)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"CPU time: {self._by_file.total():.0f} s in tests")
        for file, seconds in self._by_file.most_common(_SHOWN):
            terminalreporter.write_line(f"{seconds:7.1f} s  {file}")
