"""`compare(…)`: two sessions, or what was evaluated just now, problem by problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from engine.base.table import Table, Tabular
from engine.environment import collect_environment
from engine.evaluation import Evaluation
from engine.sessions.build import make_snapshot
from engine.sessions.compare import Pairing, SessionComparison, compare_sessions
from engine.sessions.compare.output import comparison_tables, rows_frame
from engine.sessions.files import open_session
from engine.sessions.snapshot import Snapshot

if TYPE_CHECKING:
    import pandas as pd

Compared: TypeAlias = str | Path | Evaluation | Sequence[Evaluation]


@dataclass(frozen=True, slots=True)
class Comparison(Tabular):
    """What a comparison says; `comparison` is the noun that the pages show."""

    comparison: SessionComparison

    @property
    def is_worse(self) -> bool:
        """Whether a kernel became incorrect, less accurate or slower, or is counted worse."""
        return self.comparison.exit_code == 1

    def tables(self) -> tuple[Table, ...]:
        return tuple(comparison_tables(self.comparison))

    def to_frame(self) -> pd.DataFrame:
        """A row for each pair of kernels: times in µs, verdict, figures before and after."""
        return rows_frame(self.comparison)


def compare(
    before: Compared, after: Compared, *, pairing: Pairing = "auto", across: bool = False
) -> Comparison:
    """Kernels before and after, problem by problem: right, faster or slower, resources.

    Args:
        before, after: snapshot files, names in the store, or evaluations that `check` returned.
        pairing: "same" variant and config, the "best" of each side, or "auto": the same where both
            have it, else the best.
        across: give verdicts across different GPUs, drivers and clocks too.

    Raises:
        UnknownName, SnapshotError: there is no such session, or it is damaged.

    Example:
        >>> import engine as attune
        >>> sizes = dict(seqlen=64, head_dim=32)
        >>> one, two = (attune.kernel(n, gpu="L4").check(**sizes) for n in ("v01", "v02"))
        >>> attune.compare(one, two).to_frame()[["baseline_variant", "variant"]].values.tolist()
        [['v01', 'v02']]
    """
    sessions = {"before": _session(before), "after": _session(after)}
    return Comparison(compare_sessions(sessions, "before", pairing=pairing, across=across))


def _session(given: Compared) -> Snapshot:
    if isinstance(given, str | Path):
        return open_session(str(given))
    evaluations = [given] if isinstance(given, Evaluation) else list(given)
    return make_snapshot(evaluations, environment=collect_environment())
