"""Shapes of real models to start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.names import unknown
from engine.problem import Problem


@dataclass(frozen=True, slots=True)
class Preset:
    """A named problem. `source` says where the shape comes from."""

    name: str
    group: str
    problem: Problem
    note: str
    source: str


_GPT2 = "openai/gpt-2 hparams.json, 124M: n_head 12, n_embd 768, n_ctx 1024"
_LLAMA3 = (
    "meta-llama/Meta-Llama-3-8B config.json: num_attention_heads 32, num_key_value_heads 8, "
    "hidden_size 4096, max_position_embeddings 8192"
)
_LLAMA31 = (
    "meta-llama/Llama-3.1-8B config.json: num_attention_heads 32, num_key_value_heads 8, "
    "hidden_size 4096, max_position_embeddings 131072"
)
_VIT = "Dosovitskiy et al. 2020 (arXiv 2010.11929), table 1: ViT-Base, 12 heads, hidden size 768"
_WHISPER = "openai/whisper ModelDimensions: n_audio_ctx 1500, n_audio_head, n_audio_state"
_SDXL = (
    "stabilityai/stable-diffusion-xl-base-1.0 unet/config.json: block_out_channels 320, 640, 1280, "
    "attention_head_dim 5, 10, 20 (numbers of heads), attention in the last two blocks"
)
_SDXL_TEXT = f"{_SDXL}; CLIP's text encoders take 77 tokens (max_position_embeddings)"
_L4_STUDY = "the L4 study's series over length and over batch (FP16, not causal)"

_LLAMA3_NOTE = (
    "Prefill of {s:,} tokens. Grouped-query attention: 4 query heads share each of the 8 K/V heads."
)
_DECODE_NOTE = (
    "One token decoded against a KV cache of {kv:,}. Grouped-query attention: 4 query heads share "
    "each of the 8 K/V heads."
)


def _whisper(size: str, num_heads: int) -> Preset:
    return Preset(
        f"whisper-{size}-encoder",
        "Whisper encoder",
        Problem(1, num_heads, 1500, 64),
        "30 s of audio; 1,500 is no multiple of any tile, so the last one is partial.",
        _WHISPER,
    )


def _l4(batch: int, num_heads: int, seqlen: int, head_dim: int = 64) -> Preset:
    name = f"l4-s{seqlen}" if batch == num_heads == 1 else f"l4-b{batch}-h{num_heads}"
    note = "Length series at B = H = 1." if batch == num_heads == 1 else "Batch series at S = 128."
    return Preset(name, "L4 study", Problem(batch, num_heads, seqlen, head_dim), note, _L4_STUDY)


_PRESETS: tuple[Preset, ...] = (
    Preset(
        "gpt2-small",
        "GPT-2",
        Problem(1, 12, 1024, 64, causal=True),
        "One full context of the 124M model.",
        _GPT2,
    ),
    *(
        Preset(
            f"llama3-8b-{seqlen}",
            "Llama 3",
            Problem(1, 32, seqlen, 128, causal=True, dtype="bfloat16", num_heads_kv=8),
            _LLAMA3_NOTE.format(s=seqlen),
            _LLAMA3,
        )
        for seqlen in (2048, 8192)
    ),
    *(
        Preset(
            f"llama3-8b-decode-{keys}",
            "Llama 3",
            Problem(1, 32, 1, 128, dtype="bfloat16", seqlen_kv=keys, num_heads_kv=8),
            _DECODE_NOTE.format(kv=keys),
            _LLAMA31,
        )
        for keys in (1024, 4096, 16_384)
    ),
    Preset(
        "vit-b16",
        "ViT",
        Problem(1, 12, 197, 64),
        "One 224 × 224 image: 14 × 14 patches and the class token.",
        _VIT,
    ),
    _whisper("tiny", 6),
    _whisper("base", 8),
    _whisper("small", 12),
    _whisper("medium", 16),
    _whisper("large", 20),
    Preset(
        "sdxl-4096",
        "SDXL",
        Problem(2, 10, 4096, 64),
        "Self-attention at 64 × 64 of a 1,024 × 1,024 image; B = 2 for classifier-free guidance.",
        _SDXL,
    ),
    Preset(
        "sdxl-1024",
        "SDXL",
        Problem(2, 20, 1024, 64),
        "Self-attention at 32 × 32 of a 1,024 × 1,024 image; B = 2 for classifier-free guidance.",
        _SDXL,
    ),
    Preset(
        "sdxl-4096-text",
        "SDXL",
        Problem(2, 10, 4096, 64, seqlen_kv=77),
        "Cross-attention at 64 × 64 to the 77 tokens of the prompt; B = 2 for guidance.",
        _SDXL_TEXT,
    ),
    _l4(1, 1, 4, head_dim=4),
    *(_l4(1, 1, seqlen) for seqlen in (64, 65, 128, 192, 256, 512)),
    *(_l4(b, h, 128) for b, h in ((4, 1), (1, 4), (4, 4), (8, 4), (32, 8))),
)


def presets() -> tuple[Preset, ...]:
    """Every preset, in the order in which they are offered; groups stand together."""
    return _PRESETS


def find_preset(name: str) -> Preset:
    """The preset with this name.

    Raises:
        UnknownName: no such preset; the nearest names are in the text.
    """
    for preset in _PRESETS:
        if preset.name == name.strip().casefold():
            return preset
    raise unknown("preset", name, (p.name for p in _PRESETS))


# The sets of problems that `bench --preset` measures.
_SMALL = (
    *(Problem(1, 1, seqlen, 64) for seqlen in (64, 128, 256, 512)),
    *(Problem(1, heads, 128, 64) for heads in (8, 32, 64, 128, 256)),
)
_TOKENS, _WIDTH = 16_384, 2_048  # batch · seqlen and num_heads · head_dim of every large problem
_LARGE = tuple(
    Problem(_TOKENS // seqlen, _WIDTH // head_dim, seqlen, head_dim, causal)
    for head_dim in (128, 64)
    for causal in (False, True)
    for seqlen in (512, 1024, 2048, 4096, 8192, 16_384)
)
# One query for each of 32 heads against a KV cache, as Llama 3 8B decodes with its K/V heads
# repeated, so that every variant takes it; the last one reads 2 GiB.
_DECODE = tuple(
    Problem(batch, 32, 1, 128, seqlen_kv=keys)
    for batch, keys in ((1, 1024), (1, 4096), (1, 16_384), (8, 4096), (32, 4096))
)
BENCH_PROBLEMS: Mapping[str, tuple[Problem, ...]] = {
    "small": _SMALL,
    "large": _LARGE,
    "decode": _DECODE,
}
