"""Findings: their codes, positions of wrong elements in words, and the line of the kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path

import numpy as np

from engine.attention.problem import Problem
from engine.correctness.reference import BoolArray, Coverage, IntArray
from engine.cuda_source.host_code import without_comments

_PLACE = re.compile(r"(?<![\w/])([\w.-]+\.cuh?)[:(](\d{1,7})")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a source."""

    file: str
    line: int


def place_in(text: str) -> Place | None:
    """Return the first `file.cu:line` in a text."""
    return next(places_in(text), None)


def places_in(text: str) -> Iterator[Place]:
    """Return every `file.cu:line` in a text."""
    return (Place(found[1], int(found[2])) for found in _PLACE.finditer(text))


class FindingCode(StrEnum):
    ALIBI = "alibi"
    ALL_ZERO = "all_zero"
    CAUSAL_CORNER = "causal_corner"
    CAUSAL_DIAGONAL = "causal_diagonal"
    CAUSAL_MASK = "causal_mask"
    COLUMNS_OF_D = "columns_of_d"
    DESCRIPTOR = "descriptor"
    EVERYWHERE = "everywhere"
    FIRST_KEY = "first_key"
    FUSION_RESCALE = "fusion_rescale"
    HEAD_STRIDE = "head_stride"
    KEY_COUNT = "key_count"
    KEY_TILE = "key_tile"
    KV_HEAD = "kv_head"
    KV_SPLIT_SEAM = "kv_split_seam"
    LANE_MAXIMUM = "lane_maximum"
    LATER_TILES = "later_tiles"
    LOST_SUM = "lost_sum"
    MEAN_V = "mean_v"
    MISSING_DELTA = "missing_delta"
    MMA_FRAGMENT = "mma_fragment"
    KV_SCALE = "kv_scale"
    NAN_ROW = "nan_row"
    NOT_NORMALISED = "not_normalised"
    NOT_REPEATABLE = "not_repeatable"
    ONE_HEAD = "one_head"
    ONE_QUERY_TILE = "one_query_tile"
    ONE_ROW = "one_row"
    ONLINE_RESCALE = "online_rescale"
    OPERAND = "operand"
    ORDER_OF_THREADS = "order_of_threads"
    PAGES = "pages"
    PRECISION = "precision"
    QUERY_INDEX = "query_index"
    ROW_FACTOR = "row_factor"
    ROW_MAXIMUM = "row_maximum"
    ROWS_IN_TILE = "rows_in_tile"
    ROWS_OF_ONE_WARP = "rows_of_one_warp"
    SCORE_COLUMNS = "score_columns"
    SCORE_PRECISION = "score_precision"
    SEQUENCE_LENGTH = "sequence_length"
    SINKS = "sinks"
    SOFTCAP = "softcap"
    SOFTMAX_SCALE = "softmax_scale"
    SOME_HEADS = "some_heads"
    SOME_ROWS = "some_rows"
    SPLIT_MISSING = "split_missing"
    SWIZZLE = "swizzle"
    TAIL_MASK = "tail_mask"
    TAIL_TILE = "tail_tile"
    UNWRITTEN = "unwritten"
    WINDOW = "window"


_MAX_LISTED = 6


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """The slices, rows and columns that hold at least one marked element."""

    problem: Problem
    slices: IntArray  # flat (batch, head) indices
    rows: IntArray
    columns: IntArray
    all_slices: bool
    all_rows: bool

    @classmethod
    def of(cls, mask: BoolArray, coverage: Coverage) -> Region:
        """Return the region of a `[slices, rows, head_dim]` mask."""
        by_slice, by_row = mask.any(axis=(1, 2)), mask.any(axis=(0, 2))
        return cls(
            coverage.problem,
            coverage.slices[by_slice],
            coverage.rows[by_row],
            np.flatnonzero(mask.any(axis=(0, 1))),
            bool(by_slice.all()),
            bool(by_row.all()),
        )

    @property
    def size(self) -> int:
        """Return the number of elements in the smallest box of slices, rows and columns."""
        return len(self.slices) * len(self.rows) * len(self.columns)

    def words(self) -> str:
        """`rows 64–127 of batch 0, head 1, all columns`."""
        columns = span("column", self.columns, self.problem.value_dim)
        return f"{self.row_words()} of {self.slice_words()}, {columns}"

    def row_words(self) -> str:
        return "every row" if self.all_rows else span("row", self.rows, self.problem.seqlen)

    def slice_words(self) -> str:
        """`batch 0, head 1`, `heads 1–3 of every batch`, `every head`."""
        p = self.problem
        if self.all_slices:
            return "every head" if p.batch * p.num_heads > 1 else "the only head"
        batches, heads = np.unique(self.slices // p.num_heads), np.unique(self.slices % p.num_heads)
        if len(batches) * len(heads) != len(self.slices):
            return f"{len(self.slices):,} of {p.batch * p.num_heads:,} (batch, head) slices"
        of_batches = span("batch", batches, p.batch)
        if len(heads) == p.num_heads:
            return f"every head of {of_batches}"
        return f"{of_batches}, {span('head', heads, p.num_heads)}"

    def kv_head_words(self) -> str:
        """Return `K/V head 1 of every batch` if the slices are all its query heads (GQA); else
        empty."""
        p = self.problem
        group = p.head_group
        shared = np.unique(self.slices // group)  # as `engine.correctness.reference.kv_slices`
        batches, heads = np.unique(shared // p.kv_heads), np.unique(shared % p.kv_heads)
        if group == 1 or not (
            len(self.slices) == group * len(shared) == group * len(batches) * len(heads)
        ):
            return ""
        return f"{span('K/V head', heads, p.kv_heads)} of {span('batch', batches, p.batch)}"


def span(name: str, indices: IntArray, total: int) -> str:
    """Return indices in words: `row 5`, `rows 0–63`, `every column`, `rows 1, 5, 9, …, 61 (every
    4th)`."""
    plural = f"{name}es" if name.endswith("ch") else f"{name}s"
    count = len(indices)
    if count == total:
        return f"every {name}" if total > 1 else f"{name} 0"
    if count == 1:
        return f"{name} {indices[0]}"
    steps = np.unique(np.diff(indices))
    if len(steps) == 1 and count > 2:
        if steps[0] == 1:
            return f"{plural} {indices[0]}–{indices[-1]}"
        if count > 3:
            return (
                f"{plural} {indices[0]}, {indices[1]}, {indices[2]}, …, {indices[-1]} "
                f"(every {ordinal(int(steps[0]))})"
            )
    if count <= _MAX_LISTED:
        return f"{plural} {', '.join(map(str, indices[:-1]))} and {indices[-1]}"
    return f"{count:,} {plural} between {indices[0]} and {indices[-1]}"


def ordinal(n: int) -> str:
    """`2nd`, `3rd`, `4th`, `11th`."""
    suffix = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


# The line of a kernel that a finding refers to, as far as the text shows.
#
# Attention kernels share names (`seqlen`, `softmax_scale`, `row_max`, `out`, `exp`), so the line
# that masks, scales or stores can be found by its contents. Findings name no line if none fits.


_EXP = r"\b_*exp2?f?\s*\("
_STORE = (r"=\s*to_element", r"\bout\w*\s*\[.*\]\s*=", r"\bout\w*\s*\+")
_MASK = (r"\bvisible\s*=", r"-INFINITY.*[?:]|[?:].*-INFINITY", r"-INFINITY")
_KEY_LOOP = (r"\bfor\s*\(.*\bn0\b", r"\bkv_end\s*=", r"\bfor\s*\(.*(key|tile)")
_END_OF_KEYS = (r"\b(chunk|kv)_end\s*=", *_KEY_LOOP)
_SUM = (r"1\.0f?\s*/", r"/\s*l\b", r"\brow_sum\s*\(")
_MAXIMUM = (r"=\s*row_max\s*\(", r"\bfmaxf\s*\(", _EXP)
_RESCALE = (r"\bcorrection\b.*=", _EXP)
_HEAD = r"\b\w*head\w*\s*="
_FUSION = (r"\bweight\w*\s*=", _EXP)
_CHUNKS = (r"\bchunk_\w+\s*=", r"NUM_SPLITS|NUM_WARPS")

# A finding's pattern → contents of its line; the first that fits counts.
_LINES: Mapping[str, Sequence[str]] = {
    FindingCode.TAIL_MASK: _MASK,
    FindingCode.CAUSAL_MASK: _MASK,
    FindingCode.CAUSAL_DIAGONAL: _MASK,
    FindingCode.CAUSAL_CORNER: _MASK,
    FindingCode.WINDOW: _MASK,
    FindingCode.SOFTCAP: (r"\bfinal_score\w*\s*\(", r"SOFTCAP|tanh", *_MASK),
    FindingCode.ALIBI: (r"\balibi\w*", *_MASK),
    FindingCode.SINKS: (r"\bsinks?\w*\b", *_SUM),
    FindingCode.KV_SCALE: (r"\b[kv]_scale\w*\b", r"\*=?\s*softmax_scale", *_MASK),
    FindingCode.SEQUENCE_LENGTH: (r"\bseqlens\s*\[", *_KEY_LOOP),
    FindingCode.SOFTMAX_SCALE: (
        r"\bsoftmax_scale\s*\*|\*=?\s*softmax_scale",
        r"\b\w*scale\w*\s*=",
        *_MASK,
    ),
    FindingCode.NOT_NORMALISED: (*_STORE, *_SUM),
    FindingCode.ROW_FACTOR: _SUM,
    FindingCode.SCORE_PRECISION: (r"\bs_\w+\s*\[.*\]\s*=", _EXP),
    FindingCode.ONLINE_RESCALE: _RESCALE,
    FindingCode.LANE_MAXIMUM: _MAXIMUM,
    FindingCode.ROW_MAXIMUM: _MAXIMUM,
    FindingCode.FUSION_RESCALE: _FUSION,
    FindingCode.SPLIT_MISSING: _CHUNKS,
    FindingCode.KV_SPLIT_SEAM: _CHUNKS,
    FindingCode.KEY_TILE: _KEY_LOOP,
    FindingCode.TAIL_TILE: _END_OF_KEYS,
    FindingCode.FIRST_KEY: _KEY_LOOP,
    FindingCode.KEY_COUNT: _END_OF_KEYS,
    FindingCode.QUERY_INDEX: (r"\(q_smem\b.*\bq\b", r"\bq\s*\+"),
    FindingCode.HEAD_STRIDE: (_HEAD,),
    FindingCode.DESCRIPTOR: (r"wgmma_descriptor|desc", r"tma_load"),
    FindingCode.PAGES: (r"\bblock_table\s*[\[+]", r"\w*page\w*\s*="),
    FindingCode.OPERAND: (r"\(k_smem\b.*\bk\b", r"\bk\s*\+"),
    FindingCode.MMA_FRAGMENT: (r"^\s*mma\w*\s*\(|ldmatrix\w*\s*\(", r"\bmma"),
    FindingCode.SWIZZLE: (r"\bswizzled\s*\(", r"\^", r"wgmma_descriptor"),
    FindingCode.SCORE_COLUMNS: (r"^\s*mma\w*\s*\(", r"score\s*\+="),
    FindingCode.COLUMNS_OF_D: _STORE,
    FindingCode.UNWRITTEN: _STORE,
    FindingCode.NOT_REPEATABLE: (r"\batomic\w*\s*\(",),
}
# Searched first in the functions before the kernel, which only calls them.
_IN_FUNCTIONS: Mapping[str, Sequence[str]] = {FindingCode.LANE_MAXIMUM: (r"\bfmaxf\s*\(.*__shfl",)}


def _loads(name: str) -> tuple[str, ...]:
    """Return patterns of the line that loads Q, K or V, or else of the line that computes its
    head's offset.

    Q and O have the same offset, and so have K and V: if one of them is correct, the offset is
    correct.
    """
    return (rf"\b{name}_smem\b.*\b{name}(_map)?\b", rf"\b{name}\s*\+", rf"\b{name}\s*\[", _HEAD)


# More specific, tried first: (pattern, words of the finding, contents of its line).
_SPECIFIC_LINES: Sequence[tuple[FindingCode, str, Sequence[str]]] = (
    (
        FindingCode.HEAD_STRIDE,
        "matches K and V of a head",
        (r"\bkv_\w*\s*=.*(\bseqlen|KV_BEGIN)", r"\bkv_head\w*\s*="),
    ),
    (FindingCode.HEAD_STRIDE, "matches K of a head", _loads("k")),
    (FindingCode.HEAD_STRIDE, "matches V of a head", _loads("v")),
    (FindingCode.HEAD_STRIDE, "matches Q of a head", _loads("q")),
    (FindingCode.UNWRITTEN, "Never written: every row of", (_HEAD,)),
    (FindingCode.CAUSAL_MASK, "upper bound of the key loop", _END_OF_KEYS),
    (FindingCode.KV_SPLIT_SEAM, "counting the first", (r"\bchunk_end\s*=", *_END_OF_KEYS)),
    (FindingCode.ONLINE_RESCALE, "rescales O but not l", (r"\bl\w*(\[\w+\])*\s*\*=", *_RESCALE)),
    (
        FindingCode.ONLINE_RESCALE,
        "rescales l but not O",
        (r"\bacc\w*.*\*=.*\bcorrection", *_RESCALE),
    ),
    (FindingCode.ONLINE_RESCALE, "combined with wrong weights", (r"\*=\s*correction", *_RESCALE)),
    (FindingCode.MMA_FRAGMENT, " of V not transposed", (r"ldmatrix\w*\s*\(.*\bv_",)),
)


def place_of(pattern: str, source: Path | None, sentence: str = "") -> str:
    """Return `file.cu:line`, or an empty text.

    Args:
        sentence: the finding's sentence, which may make the line more specific.
    """
    specific = [
        lines for code, words, lines in _SPECIFIC_LINES if code == pattern and words in sentence
    ]
    wanted = [*chain.from_iterable(specific), *_LINES.get(pattern, ())]
    if not wanted or source is None:
        return ""
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    code = without_comments(text).splitlines()
    # Functions and constants precede the kernel, which is searched first.
    begin = next((i for i, line in enumerate(code) if "__global__" in line), 0)
    found = (
        _line_of(_IN_FUNCTIONS.get(pattern, ()), code, range(begin))
        or _line_of(wanted, code, range(begin, len(code)))
        or _line_of(wanted, code, range(begin))
    )
    return f"{source.name}:{found}" if found else ""


def _line_of(wanted: Sequence[str], code: Sequence[str], lines: range) -> int:
    """Return the line number, from 1; 0 if no line fits."""
    pairs = ((expression, i) for expression in wanted for i in lines)
    return next((i + 1 for expression, i in pairs if re.search(expression, code[i])), 0)
