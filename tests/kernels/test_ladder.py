"""The ladder's files, headers, description blocks and README table say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cuda_source import barriers, header, without_comments

from engine.problem import Problem
from kernels.ladder import LADDER, by_id, markdown_table
from kernels.variant import KERNELS_DIR, Variant

README = KERNELS_DIR.parent / "README.md"
TABLE_BEGIN, TABLE_END = "<!-- ladder:begin -->", "<!-- ladder:end -->"
HEADER_LABELS = ("Idea", "Changed", "Limiter", "Constraints", "Passes", "Source", "Weakness")
GIVEN_MACROS = {"HEAD_DIM", "IS_CAUSAL", "IS_BF16"}
CUDA_HEADERS = {"cuda_fp16.h", "cuda_bf16.h", "mma.h"}  # those that NVRTC's wheels bring

each_variant = pytest.mark.parametrize("variant", LADDER, ids=lambda v: v.name)


def test_every_file_describes_a_variant() -> None:
    assert LADDER.errors == ()
    assert [variant.source.name for variant in LADDER] == sorted(
        path.name for path in KERNELS_DIR.glob("*.cu")
    )


def test_ids_are_unique_and_ascending() -> None:
    ids = [variant.id for variant in LADDER]
    assert ids == sorted(set(ids))
    for variant in LADDER:
        assert re.fullmatch(r"v\d\d", variant.id)
        assert variant.name.startswith(variant.id + "_")


@each_variant
def test_by_id_takes_id_and_name(variant: Variant) -> None:
    assert by_id(variant.id) is variant
    assert by_id(variant.name) is variant


def test_by_id_rejects_what_is_not_there() -> None:
    with pytest.raises(KeyError):
        by_id("v99")


@each_variant
def test_header_has_its_eight_lines(variant: Variant) -> None:
    assert variant.idea
    lines = header(variant.source.read_text(encoding="utf-8"))
    assert len(lines) == 8
    assert lines[0].startswith(f"{variant.id} {variant.title}: "), lines[0]
    for label, line in zip(HEADER_LABELS, lines[1:], strict=True):
        assert re.fullmatch(rf"{label}: \S.*\.", line), line


@each_variant
def test_header_agrees_with_the_block(variant: Variant) -> None:
    lines = header(variant.source.read_text(encoding="utf-8"))
    dims = ", ".join(map(str, variant.head_dims))
    assert f"D in {{{dims}}}" in lines[4]
    assert lines[5].startswith(f"Passes: {len(variant.passes)}, ")
    for launch in variant.passes:
        assert launch.entry in lines[5]


@each_variant
def test_macros_of_the_file_are_the_tunables(variant: Variant) -> None:
    source = variant.source.read_text(encoding="utf-8")
    code = without_comments(source)
    code = re.sub(r'"[^"\n]*"', '""', code)
    used = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", code))
    own = set(re.findall(r"(?:constexpr \w+|#define|template <int|, int) ([A-Z][A-Z0-9_]+)", code))
    tunables = {tunable.macro for tunable in variant.tunables}
    assert used - own - GIVEN_MACROS - {"INFINITY"} == tunables
    assert {"HEAD_DIM", "IS_CAUSAL"} <= used
    assert re.search(r'^#include "(element|mma)\.cuh"', source, re.MULTILINE)  # IS_BF16


@each_variant
def test_every_tunable_is_guarded_with_a_reason(variant: Variant) -> None:
    code = without_comments(variant.source.read_text(encoding="utf-8"))
    guards = re.findall(r'static_assert\((.*?),\s*"([^"]+)"\);', code, re.DOTALL)
    assert len(guards) == code.count("static_assert")
    for tunable in variant.tunables:
        reasons = [why for condition, why in guards if tunable.macro in condition]
        assert any(tunable.name in why and ": " in why for why in reasons), tunable.name


@each_variant
def test_every_barrier_has_a_reason_beside_it(variant: Variant) -> None:
    source = variant.source.read_text(encoding="utf-8")
    lines = source.splitlines()
    for barrier in barriers(source):
        above, here = lines[barrier.line - 2].strip(), lines[barrier.line - 1]
        assert above.startswith("//") or "//" in here, f"{variant.name}.cu:{barrier.line}"


@pytest.mark.parametrize(
    "path", sorted([*KERNELS_DIR.glob("*.cu"), *KERNELS_DIR.glob("*.cuh")]), ids=lambda p: p.name
)
def test_no_host_headers_and_short_lines(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    own = {p.name for p in KERNELS_DIR.glob("*.cuh")}
    assert set(re.findall(r'#include "([^"]+)"', source)) <= own
    assert set(re.findall(r"#include <([^>]+)>", source)) <= CUDA_HEADERS
    assert max(map(len, source.splitlines())) <= 100
    assert "\t" not in source


@each_variant
def test_defaults_are_supported(variant: Variant) -> None:
    problem = Problem(1, 1, 128, variant.head_dims[0], dtype=variant.dtypes[0])
    assert variant.unsupported(problem, variant.default_config()) is None


@each_variant
@pytest.mark.parametrize("seqlen", [1, 63, 64, 65, 1023, 4096])
def test_the_main_grid_covers_every_query_once(variant: Variant, seqlen: int) -> None:
    config = variant.default_config()
    problem = Problem(3, 5, seqlen, variant.head_dims[-1])
    x, y, z = variant.passes[0].grid(problem, config)
    query_rows = variant.work.query_rows(problem, config)
    tiles, rest = divmod(x * y * z, 15 * config.get("num_splits", 1))
    assert rest == 0
    assert (tiles - 1) * query_rows < seqlen <= tiles * query_rows
    threads = variant.passes[0].threads(problem, config)
    assert 0 < variant.work.math_threads(problem, config) <= threads <= 1024


@each_variant
def test_a_grid_beyond_cuda_is_refused_with_a_sentence(variant: Variant) -> None:
    problem = Problem(65536, 1, 1, variant.head_dims[0])
    reason = variant.unsupported(problem, variant.default_config())
    assert reason is not None
    assert "65,536" in reason
    assert "65,535" in reason


def test_v01_computes_with_64_of_256_threads() -> None:
    v01, problem = by_id("v01"), Problem(4, 2, 128, 64)
    config = v01.default_config()
    assert v01.passes[0].grid(problem, config) == (2, 4, 2)
    assert v01.passes[0].threads(problem, config) == 256
    assert v01.work.math_threads(problem, config) == 64


@pytest.mark.parametrize("num_splits", by_id("v05").tunables[-1].values)
def test_v05_chunks_cover_the_keys(num_splits: int) -> None:
    v05 = by_id("v05")
    config = v05.default_config() | {"num_splits": num_splits}
    for keys in (1, 64, 65, 300, 4096):
        for problem in (Problem(1, 1, keys, 64), Problem(1, 1, 7, 64, seqlen_kv=keys)):
            rows = v05.work.kv_rows(problem, config)
            assert rows % config["block_n"] == 0
            assert keys <= rows * num_splits
            assert rows < keys + 2 * config["block_n"]


def test_readme_shows_the_ladder() -> None:
    readme = README.read_text(encoding="utf-8")
    shown = readme.split(TABLE_BEGIN)[1].split(TABLE_END)[0].strip()
    assert shown == markdown_table()
