"""Which line of a kernel a finding speaks of, as far as its text tells.

Kernels of this kind share their vocabulary (`seqlen`, `softmax_scale`, `row_max`, `out`, `exp`), so
the line that masks, scales or stores can be found by what it must contain. Nothing is claimed where
no line fits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_EXP = r"\b_*exp2?f?\s*\("
_STORE = (r"\bout\w*\s*\[.*\]\s*=", r"\bout\w*\s*\+", r"=\s*to_element")
_MASK = (r"\bvisible\s*=", r"-INFINITY.*[?:]|[?:].*-INFINITY", r"-INFINITY")
_KEY_LOOP = (r"\bfor\s*\(.*\bn0\b", r"\bkv_end\s*=", r"\bfor\s*\(.*(key|tile)")
_SUM = (r"1\.0f?\s*/", r"/\s*l\b", r"\brow_sum\s*\(")
_MAXIMUM = (r"=\s*row_max\s*\(", r"\bfmaxf\s*\(", _EXP)
_FUSION = (r"\bweight\w*\s*=", _EXP)
_CHUNKS = (r"\bchunk_\w+\s*=", r"NUM_SPLITS|NUM_WARPS")

# A finding's pattern → what its line contains; the first that fits counts.
_LINES: Mapping[str, Sequence[str]] = {
    "tail_mask": _MASK,
    "causal_mask": _MASK,
    "causal_diagonal": _MASK,
    "softmax_scale": (r"\*=?\s*softmax_scale", *_MASK),
    "not_normalised": _SUM,
    "row_factor": _SUM,
    "score_precision": (r"\bs_\w+\s*\[.*\]\s*=", _EXP),
    "online_rescale": (r"\bcorrection\b.*=", _EXP),
    "lane_maximum": _MAXIMUM,
    "row_maximum": _MAXIMUM,
    "fusion_rescale": _FUSION,
    "split_missing": _CHUNKS,
    "kv_split_seam": _CHUNKS,
    "key_tile": _KEY_LOOP,
    "tail_tile": _KEY_LOOP,
    "first_key": _KEY_LOOP,
    "key_count": _KEY_LOOP,
    "query_index": (r"\(q_smem\b.*\bq\b", r"\bq\s*\+"),
    "head_stride": (r"\b\w*head\w*\s*=",),
    "operand": (r"\(k_smem\b.*\bk\b", r"\bk\s*\+"),
    "mma_fragment": (r"^\s*mma\w*\s*\(|ldmatrix\w*\s*\(", r"\bmma"),
    "swizzle": (r"\bswizzled\s*\(", r"\^", r"wgmma_descriptor"),
    "score_columns": (r"^\s*mma\w*\s*\(", r"score\s*\+="),
    "columns_of_d": _STORE,
    "unwritten": _STORE,
    "not_repeatable": (r"\batomic\w*\s*\(",),
}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def place_of(pattern: str, source: Path | None) -> str:
    """`file.cu:line`, or an empty text."""
    wanted = _LINES.get(pattern)
    if wanted is None or source is None:
        return ""
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    code = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text).splitlines()
    # Functions and constants stand before the kernel that uses them.
    begin = next((i for i, line in enumerate(code) if "__global__" in line), 0)
    for expression in wanted:
        for number in range(begin, len(code)):
            if re.search(expression, code[number]):
                return f"{source.name}:{number + 1}"
    return ""
