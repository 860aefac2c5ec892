"""Guess the meaning of parameter names: tensors, sizes, strides, tiles."""

from __future__ import annotations

import re
from typing import Final

from engine.own_kernels.host_launch import Parameter

_POINTERS: Final = {
    "q": "q query queries", "k": "k key keys", "v": "v value values",
    "qkv": "qkv inp qkvpacked packedqkv mixedqkv", "out": "o out output outputs result y dst",
    "lse": "lse softmaxlse logsumexp",
}  # fmt: skip
SIZES: Final = {
    "batch": "b batch batchsize bs bsz nbatch numbatch numbatches",
    "num_heads_kv": "hkv hk numheadskv nkvheads kvheads numkvheads headskv nheadsk numheadsk "
    "numkeyvalueheads nheadskv",
    "num_heads": "h nh heads numheads nheads nhead numhead hq numqheads numheadsq qheads nqheads",
    "seqlen_kv": "skv seqlenkv seqlenk kvlen lenkv lenk nk sk nkv kvseqlen tkv seqkv kseqlen "
    "numkeys lk lkv",
    "seqlen": "s n t seqlen seqlenq sq nq lenq qlen seq sequencelength qseqlen seqlength numtokens "
    "lq",
    "head_dim": "d dim headdim hd hs dk dhead headsize dh",
    "causal": "causal iscausal",
    "num_heads * head_dim": "c channels dmodel embeddim hidden hiddensize embed modeldim",
    "num_heads // num_heads_kv": "hhkratio group groupsize headgroup kvgroup queriesperkv gqagroup "
    "headspergroup",
}  # fmt: skip
SCALES: Final = (
    "scale softmaxscale smscale scaling scalefactor attnscale qkscale sm attentionscale "
    "invsqrtd scalesoftmax"
)
_DROPPED: Final = frozenset(
    "ptr p d dev device g gmem global in tensor matrix param params".split()
)
ROWS: Final = "blockm br bm blockq tileq tilem blocksizem qtile blocksizeq rows blockrows"
_KEYS: Final = "blockn bc bn blockk tilek tilen tilekv blocksizen blockkv bkv ktile kvtile"
THREADS: Final = "threads numthreads nthreads tbsize blockthreads threadsperblock blocksize"
WARPS: Final = "warps numwarps nwarps warpsperblock warpspercta"
_OF_HOST: Final = frozenset("d dev device h ptr gpu".split())


def size_named(name: str) -> str:
    """Return the formula of the problem's size with this name; empty if there is none."""
    key = joined_words(name)
    if is_head_dim(key):
        return "head_dim"
    sizes = (formula for formula, known in SIZES.items() if key in known.split())
    return next((formula for formula in sizes if formula != "causal"), "")


def usual_number(name: str) -> str:
    """Return the usual number for the name of a tile, a CTA's threads or its warps; empty for other
    names."""
    key = joined_words(name)
    known = ((ROWS, 64), (_KEYS, 64), (THREADS, 128), (WARPS, 4))
    return next((str(value) for names, value in known if key in names.split()), "")


def is_known_template(parameter: Parameter) -> bool:
    key = joined_words(parameter.name)
    return is_head_dim(key) or key in SIZES["causal"].split()


def is_head_dim(key: str) -> bool:
    return key in (*SIZES["head_dim"].split(), "kheaddim", "khd", "kd", "kdim", "headdimension")


def words_of(name: str) -> list[str]:
    parts = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().split("_")
    return [part for part in parts if part]


def joined_words(name: str) -> str:
    """Return the words of a name joined; the leading k of constants (`kBlockM`) is dropped."""
    words = words_of(name)
    return "".join(words[1:] if len(words) > 1 and words[0] == "k" else words)


def buffer_name(name: str) -> str:
    """Return a buffer's name without prefixes that mark device memory: `preatt` for `d_preatt`."""
    words = words_of(name)
    return "_".join([word for word in words if word not in _OF_HOST] or words)


def words_of_pointer(parameter: Parameter) -> list[str]:
    """Return the words of a pointer's name, without those that only mark a pointer."""
    words = words_of(parameter.name)
    return [word for word in words if word not in _DROPPED] or words


def tensor_named(words: list[str]) -> str:
    """Return the tensor with this name; empty if there is none."""
    return next((n for n, known in _POINTERS.items() if "".join(words) in known.split()), "")


def has_word(words: list[str], stem: str) -> bool:
    return any(stem in word for word in words)


def stride_named(words: list[str]) -> str:
    """The formula of a stride named as in FlashAttention, PyTorch or Triton; empty if unclear.

    Without a tensor's name (`stride_h`), all tensors share the stride; Q's is returned.
    """
    rest = [word for word in words if word not in ("stride", "strides")]
    if len(rest) == 1 and len(rest[0]) == 2:
        rest = list(rest[0])
    if not rest:
        return ""
    if len(rest) == 1 and rest[0] in ("batch", "b", "bs", "head", "h", "heads", "row", "seq", "s"):
        rest = ["q", *rest]
    tensor = {"q": "q", "k": "k", "v": "v", "o": "out", "out": "out"}.get(rest[0], "")
    axis = rest[1] if len(rest) > 1 else ""
    if not tensor or not axis:
        return ""
    if axis in ("batch", "b", "z", "bs"):
        return f"{tensor}_stride_batch"
    if axis in ("head", "h", "heads", "nh"):
        return f"{tensor}_stride_head"
    by_row = ("row", "seq", "seqlen", "s", "m", "t", "token") + (("n",) if tensor in "qk" else ())
    return f"{tensor}_stride_row" if axis in by_row or (tensor == "v" and axis == "k") else "1"
