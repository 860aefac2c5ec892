"""Tables of the kernels that ranked first by simulated time, for each compute capability and pass.

    attune auto --renew    writes them; see `engine.choose.auto.renew`

Classes of problems are grid points: head_dim, mask, lengths, query heads B·H and query heads per
K/V head. For a problem, the nearest point whose kernel supports it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import log2
from pathlib import Path

from engine.attention.problem import Direction, Problem
from engine.base import files
from engine.base.errors import AttuneError, CompileError
from engine.cuda_source.host_code import without_comments
from engine.devices.spec import DeviceSpec
from engine.model.kernel import variant_sources
from kernels.ladder import LADDER
from kernels.variant import Variant

# Fast instructions that only one architecture has, and the rungs that use them.

_BY_MAJOR = {
    9: "wgmma and TMA, Hopper's own tensor-core instructions",
    10: "tcgen05, Blackwell's own tensor-core instructions",
}


def own_instructions(device: DeviceSpec) -> str:
    """Return the names of instructions that only this architecture has; empty if there are none."""
    return _BY_MAJOR.get(device.compute_capability[0], "")


def own_rungs(device: DeviceSpec, direction: Direction = "forward") -> list[Variant]:
    """Return the rungs that use instructions that only this architecture has."""
    capability, rungs = device.compute_capability, eligible(direction)
    return [v for v in rungs if v.arch_specific and v.min_compute_capability == capability]


def unused_instructions(device: DeviceSpec) -> str:
    """Return a sentence on instructions that only this architecture has and no rung uses; empty if
    there are none."""
    own = own_instructions(device)
    if not own or own_rungs(device):
        return ""
    return f"Not used on {device.name}: {own}, which no rung uses or simulates."


FOLDER = Path(__file__).with_name("tables")
FORMAT = 1
_MAX_BYTES = 4 << 20
_COLUMNS = "head_dim causal seqlen keys heads group variant config us beside beside_us".split()
_FILE = re.compile(r"sm_(?P<major>\d+)(?P<minor>\d)(?P<backward>_backward)?\.json")


@dataclass(frozen=True, slots=True)
class Row:
    """One class of problems and the first-ranked kernel of all variants that support it."""

    head_dim: int
    causal: bool
    seqlen: int
    keys: int
    heads: int  # B·H
    group: int  # query heads to a K/V head
    variant: str
    config: Mapping[str, int]
    us: float
    beside: str  # the second-fastest variant; empty if no other supports the class
    beside_us: float

    def distance(self, problem: Problem, heads: float) -> float:
        """Return the distance of a problem from the row, in doublings of its sizes.

        Args:
            heads: the problem's B·H, scaled to the SMs of the table's GPU.
        """
        return (
            8 * abs(log2(self.head_dim / problem.head_dim))
            + 8 * (self.causal != problem.causal)
            + abs(log2(self.seqlen / problem.seqlen))
            + abs(log2(self.keys / problem.num_keys))
            + 0.5 * abs(log2(self.heads / heads))
            + 0.5 * abs(log2(self.group / problem.head_group))
        )

    def label(self) -> str:
        """Return a label such as `B·H=8 S128 D64`."""
        keys = f" KV{self.keys}" if self.keys != self.seqlen else ""
        group = f" G{self.group}" if self.group > 1 else ""
        mask = " causal" if self.causal else ""
        return f"B·H={self.heads} S{self.seqlen}{keys} D{self.head_dim}{group}{mask}"


@dataclass(frozen=True, slots=True)
class Table:
    """The ranking for one compute capability and direction, on one GPU."""

    compute_capability: str
    gpu: str
    num_sms: int
    made: str  # a date
    compiler: str
    sources: Mapping[str, str]  # by variant: its `code_digest` at the ranking
    rows: tuple[Row, ...]

    def nearest(self, problem: Problem, num_sms: int) -> list[Row]:
        """Return all rows, nearest first. Heads are compared per SM, as GPUs have different
        numbers of SMs."""
        heads = problem.batch * problem.num_heads * self.num_sms / num_sms
        return sorted(self.rows, key=lambda row: row.distance(problem, heads))

    def to_text(self) -> str:
        """Return the content of the table's file."""
        head = {
            "format": FORMAT,
            "compute_capability": self.compute_capability,
            "gpu": self.gpu,
            "num_sms": self.num_sms,
            "origin": "simulated, FP16; nothing was measured",
            "made": self.made,
            "compiler": self.compiler,
            "sources": dict(self.sources),
            "columns": _COLUMNS,
        }
        fields = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
        rows = ",\n".join(json.dumps(_listed(row)) for row in self.rows)
        return "{\n" + ",\n".join(fields) + ',\n"rows": [\n' + rows + "\n]}\n"


def _listed(row: Row) -> list[object]:
    config = " ".join(f"{name}={value}" for name, value in row.config.items())
    return [
        *(row.head_dim, int(row.causal), row.seqlen, row.keys, row.heads, row.group),
        *(row.variant, config, round(row.us, 3), row.beside, round(row.beside_us, 3)),
    ]


def _row(listed: list[object]) -> Row:
    sizes, (variant, config, us, beside, beside_us) = listed[:6], listed[6:]
    head_dim, causal, seqlen, keys, heads, group = (int(str(size)) for size in sizes)
    pairs = (pair.split("=") for pair in str(config).split())
    return Row(
        *(head_dim, bool(causal), seqlen, keys, heads, group, str(variant)),
        {name: int(value) for name, value in pairs},
        *(float(str(us)), str(beside), float(str(beside_us))),
    )


def table_for(
    compute_capability: tuple[int, int], direction: Direction = "forward"
) -> Table | None:
    """Return the table of a compute capability, else of the next lower one, else of the next higher
    one.

    None if there is no table at all.

    Raises AttuneError as `read_table`.
    """
    named = (_FILE.fullmatch(path.name) for path in FOLDER.glob("sm_*.json"))
    known = [
        (int(match["major"]), int(match["minor"]))
        for match in named
        if match is not None and (match["backward"] is not None) == (direction == "backward")
    ]
    lower = [capability for capability in known if capability <= compute_capability]
    return read_table(max(lower) if lower else min(known), direction) if known else None


def read_table(
    compute_capability: tuple[int, int], direction: Direction = "forward"
) -> Table | None:
    """Return the table of a compute capability, or None.

    Raises:
        AttuneError: the file is damaged.
    """
    path = table_path(compute_capability, direction)
    try:
        stamp = path.stat().st_mtime_ns
    except OSError:
        return None
    return _read(path, stamp)


def table_path(compute_capability: tuple[int, int], direction: Direction = "forward") -> Path:
    """Return the file of a compute capability's table, which may not exist."""
    major, minor = compute_capability
    return FOLDER / f"sm_{major}{minor}{'_backward' * (direction == 'backward')}.json"


@lru_cache(maxsize=8)
def _read(path: Path, _stamp: int) -> Table:
    try:
        data = json.loads(files.read(path, _MAX_BYTES))
        if data["format"] != FORMAT or data["columns"] != _COLUMNS:
            raise ValueError("another format")
        return Table(
            compute_capability=data["compute_capability"],
            gpu=data["gpu"],
            num_sms=data["num_sms"],
            made=data["made"],
            compiler=data["compiler"],
            sources=data["sources"],
            rows=tuple(map(_row, data["rows"])),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AttuneError(
            f"The table {path.name} of `auto` cannot be read ({error}): run attune auto "
            "--renew, or name a variant.",
            code="auto_table",
        ) from None


def code_digest(variant: Variant) -> str:
    """Return 16 hex digits of a hash of the code with its headers, without comments; empty if
    unreadable."""
    try:
        texts = [(file.name, file.code) for file in variant_sources(variant).files]
    except CompileError:
        return ""
    return _digest(tuple(texts))


@lru_cache(maxsize=256)
def _digest(texts: tuple[tuple[str, str], ...]) -> str:
    plain = [(name, " ".join(without_comments(code).split())) for name, code in texts]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]


def eligible(direction: Direction = "forward") -> tuple[Variant, ...]:
    """Return the rungs that `auto` may choose for a direction.

    Rungs for paged K and V are left out, because a problem's K and V are contiguous.
    """
    rungs = LADDER.backward if direction == "backward" else LADDER
    return tuple(variant for variant in rungs if variant.page_rows is None)


def changed_since(table: Table, variants: Iterable[Variant]) -> list[str]:
    """Return ids of variants that are new or whose code has changed since the ranking."""
    may_be = [v for v in variants if v.page_rows is None]
    return [v.id for v in may_be if table.sources.get(v.id) != code_digest(v)]
