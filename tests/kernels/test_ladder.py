"""The ladder's files, headers, description blocks and README table agree."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from kernel_text import barriers, header, without_comments
from words import says

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.kernel_figures.changes import header_of, kept_share, lessons_tree, rung_before
from kernels.ladder import LADDER, by_id, markdown_table
from kernels.variant import KERNELS_DIR, Variant

README = KERNELS_DIR / "README.md"
TABLE_BEGIN, TABLE_END = "<!-- ladder:begin -->", "<!-- ladder:end -->"
HEADER_LABELS = ("Idea", "Changed", "Limiter", "Constraints", "Passes", "Source", "Weakness")
# Names defined by headers.
GIVEN_NAMES = {"INFINITY", "LOG2_E", "FULL_WARP", "VECTOR", "ROW_STRIDE", "DELTA_ROWS"}
GIVEN_MACROS = {"HEAD_DIM", "IS_CAUSAL", "IS_BF16"}
CUDA_HEADERS = {"cuda_fp16.h", "cuda_bf16.h", "mma.h"}  # those of NVRTC's wheels

each_variant = pytest.mark.parametrize("variant", LADDER.every(), ids=lambda v: v.name)
each_forward = pytest.mark.parametrize("variant", LADDER, ids=lambda v: v.name)


def test_every_file_describes_a_variant() -> None:
    assert LADDER.errors == ()
    assert [variant.source.name for variant in LADDER.every()] == sorted(
        path.name for path in KERNELS_DIR.glob("*.cu")
    )


def test_ids_are_unique_and_ascending() -> None:
    ids = [variant.id for variant in LADDER.every()]
    assert ids == sorted(set(ids))
    assert set(ids) == {v.id for v in (*LADDER, *LADDER.backward)}
    for variant in LADDER.every():
        assert re.fullmatch(r"v\d\d", variant.id)
        assert variant.name.startswith(variant.id + "_")


@each_variant
def test_by_id_accepts_id_and_name(variant: Variant) -> None:
    hash(variant)  # pages cache by variant
    assert by_id(variant.id) is variant
    assert by_id(variant.name) is variant


def test_by_id_rejects_unknown_names() -> None:
    with pytest.raises(KeyError):
        by_id("v99")


@each_variant
def test_header_has_its_lines(variant: Variant) -> None:
    assert variant.idea
    lines = header(variant.source.read_text(encoding="utf-8"))
    assert len(lines) == 8  # figures are in the README
    assert lines[0].startswith(f"{variant.id} {variant.title}: "), lines[0]
    for label, line in zip(HEADER_LABELS, lines[1:], strict=True):
        assert re.fullmatch(rf"{label}: \S.*\.", line), line


@each_variant
def test_header_agrees_with_the_block(variant: Variant) -> None:
    lines = header(variant.source.read_text(encoding="utf-8"))
    dims = ", ".join(map(str, variant.head_dims))
    assert f"D in {{{dims}}}" in lines[4]
    assert ".cuh" not in lines[4]  # it states limits, not files
    assert lines[5].startswith(f"Passes: {len(variant.passes)}, ")
    for launch in variant.passes:
        assert launch.entry in lines[5]


@each_variant
def test_macros_of_the_file_are_its_tunables_and_features(variant: Variant) -> None:
    source = variant.source.read_text(encoding="utf-8")
    code = without_comments(source)
    code = re.sub(r'"[^"\n]*"', '""', code)
    used = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", code))
    own = set(re.findall(r"(?:constexpr \w+|#define|template <int|, int) ([A-Z][A-Z0-9_]+)", code))
    tunables = {tunable.macro for tunable in variant.tunables}
    features: set[str] = set()
    included = set(re.findall(r'#include "([^"]+)"', source))
    for name in {"arch.cuh", "features.cuh", "fp8.cuh"} & included | {"lse.cuh"}:
        header = (KERNELS_DIR / name).read_text(encoding="utf-8")
        features |= set(re.findall(r"#define ([A-Z][A-Z0-9_]+)", header))
        features |= {"IS_CAUSAL"} & set(re.findall(r"\w+", header))  # in the macros of visibility
    assert used - own - GIVEN_MACROS - GIVEN_NAMES - features == tunables
    assert {"HEAD_DIM", "IS_CAUSAL"} <= used | features
    # IS_BF16 is in these.
    assert re.search(r'^#include "(element|mma|hopper|backward)\.cuh"', source, re.MULTILINE)


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
    for line in barriers(source):
        above, here = lines[line - 2].strip(), lines[line - 1]
        assert above.startswith("//") or "//" in here, f"{variant.name}.cu:{line}"


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
    other = replace(problem, direction="backward")
    if variant.is_backward:
        problem, other = other, problem
    assert variant.unsupported(other, variant.default_config()) is not None
    assert variant.unsupported(problem, variant.default_config()) is None


@each_forward
@pytest.mark.parametrize("seqlen", [1, 63, 64, 65, 1023, 4096])
def test_the_main_grid_covers_every_query_once(variant: Variant, seqlen: int) -> None:
    config = variant.default_config()
    problem = Problem(3, 5, seqlen, variant.head_dims[-1])
    x, y, z = variant.passes[0].grid(problem, config)
    query_rows = variant.work.query_rows(problem, config)
    if "num_ctas" in config:  # Persistent CTAs share all tiles
        assert x == min(config["num_ctas"], 15 * -(-seqlen // query_rows))
        return
    tiles, rest = divmod(x * y * z, 15 * config.get("num_splits", 1))
    assert rest == 0
    assert (tiles - 1) * query_rows < seqlen <= tiles * query_rows
    threads = variant.passes[0].threads(problem, config)
    assert 0 < variant.work.math_threads(problem, config) <= threads <= 1024


@each_variant
def test_a_grid_beyond_the_limits_of_cuda_is_refused(variant: Variant) -> None:
    direction = "backward" if variant.is_backward else "forward"
    problem = Problem(65536, 1, 1, variant.head_dims[0], direction=direction)
    config = variant.default_config()
    reason = variant.unsupported(problem, config)
    if "num_ctas" in config:
        assert reason is None
        return
    assert reason is not None
    assert "65,536" in reason
    assert "65,535" in reason


A = Problem(3, 5, 203, 64)
B = Problem(2, 7, 65, 128, dtype="bfloat16", seqlen_kv=130)
C = Problem(3, 5, 77, 64)


@pytest.mark.parametrize(
    # passes: grid, threads, shared memory; work: math threads, query rows, K/V rows, conflict ways
    ("variant_id", "problem", "values", "passes", "work"),
    [
        ("v01", A, (64,), [((4, 5, 3), 256, 40960)], (64, 64, 256, None)),
        ("v01", B, (32,), [((2, 7, 2), 256, 40960)], (64, 64, 160, None)),
        ("v02", A, (64, 4), [((4, 5, 3), 256, 42752)], (256, 64, 256, 1)),
        ("v02", B, (32, 8), [((2, 7, 2), 512, 43520)], (512, 64, 160, 1)),
        ("v03", A, (64, 8), [((4, 5, 3), 128, 45056)], (128, 64, 256, 1)),
        ("v03", B, (64, 8), [((2, 7, 2), 128, 69632)], (128, 64, 192, 1)),
        ("v04", A, (32, 64, 4), [((7, 5, 3), 128, 31744)], (128, 32, 256, 1)),
        ("v04", B, (32, 64, 4), [((3, 7, 2), 128, 52224)], (128, 32, 192, 1)),
        (
            *("v05", A, (64, 4, 4)),
            [((4, 20, 3), 256, 42752), ((51, 5, 3), 128, 0)],
            (256, 64, 64, 1),
        ),
        (
            *("v05", B, (32, 8, 32)),
            [((2, 224, 2), 512, 43520), ((17, 7, 2), 128, 0)],
            (512, 64, 32, 1),
        ),
        ("v06", A, (64, 4, 4), [((4, 20, 3), 256, 42752)], (256, 64, 64, 1)),
        ("v06", B, (32, 8, 32), [((2, 224, 2), 512, 43520)], (512, 64, 32, 1)),
        ("v08", A, (64, 4), [((4, 5, 3), 128, 18432)], (128, 64, 256, 1)),
        ("v08", B, (32, 8), [((1, 7, 2), 256, 17408)], (256, 128, 160, 1)),
        ("v13", A, (32, 2, 4, 2, 264), [((30, 1, 1), 128, 32768)], (128, 128, 224, 1)),
        ("v12", C, (4, 1, 32, 1), [((5, 5, 3), 128, 18944)], (128, 16, 128, 1)),
        ("v12", B, (8, 1, 64, 1), [((5, 7, 2), 256, 140288)], (256, 16, 512, 1)),
    ],
)
def test_figures_of_a_launch(
    variant_id: str,
    problem: Problem,
    values: tuple[int, ...],
    passes: list[tuple[tuple[int, int, int], int, int]],
    work: tuple[int | None, ...],
) -> None:
    variant = by_id(variant_id)
    config = {t.name: v for t, v in zip(variant.tunables, values, strict=True)}
    if problem in (A, C):
        assert config == variant.default_config()
    plan = make_plan(variant, problem, config)
    assert [(p.grid, p.threads, p.dynamic_smem_bytes) for p in plan.passes] == passes
    w = variant.work
    formulas = (w.math_threads, w.query_rows, w.kv_rows, w.conflict_ways)
    assert tuple(f and f(problem, config) for f in formulas) == work


@pytest.mark.parametrize(
    ("variant_id", "shapes"),
    [
        ("v05", [(4, 3, 5, 203, 64), (4, 3, 5, 203), (4, 3, 5, 203)]),
        ("v06", [(4, 3, 5, 203, 64), (4, 3, 5, 203), (4, 3, 5, 203), (3, 5, 4)]),
    ],
)
def test_scratch_and_arguments_of_splits(variant_id: str, shapes: list[tuple[int, ...]]) -> None:
    variant = by_id(variant_id)
    plan = make_plan(variant, A, variant.default_config())
    assert [buffer.shape for buffer in plan.scratch] == shapes
    names = "o_partial m_partial l_partial"
    sizes = "num_heads seqlen seqlen_kv softmax_scale"
    assert [" ".join(arg.name for arg in launch.args) for launch in plan.passes] == {
        "v05": [f"q k v {names} {sizes}", f"{names} out seqlen softmax_scale"],
        "v06": [f"q k v out {names} arrivals {sizes}"],
    }[variant_id]
    assert [buffer.fill for buffer in plan.scratch if buffer.dtype == "int32"] == (
        ["zero"] if variant_id == "v06" else []
    )


def test_v12_names_the_number_of_keys_it_supports() -> None:
    v12 = by_id("v12")
    why = v12.unsupported(Problem(1, 1, 1, 64, seqlen_kv=4096), v12.default_config())
    assert says(str(why), "one_shot_keys", "here 128", "4,096", "here 1")


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


def test_readme_shows_which_rung_builds_on_which() -> None:
    """Renewed by `attune variants --tree --into kernels/README.md`."""
    tree = README.read_text(encoding="utf-8").split("<!-- ladder tree:begin -->")[1]
    shown = tree.split("<!-- ladder tree:end -->")[0].strip().strip("`").strip("\n")
    now = lessons_tree()
    share = re.compile(r"(\d+)%")
    assert share.sub("", shown) == share.sub("", now)
    # A small edit of a kernel does not require a new README.
    for told, kept in zip(share.findall(shown), share.findall(now), strict=True):
        assert abs(int(told) - int(kept)) <= 5
    listed = [line.lstrip(" │├└─").split()[0] for line in now.splitlines()]
    assert sorted(listed) == sorted(variant.id for variant in LADDER.every())


KEPT = 0.7  # of the parent's lines


@each_variant
def test_header_explains_why_a_rung_keeps_little_of_its_parent(variant: Variant) -> None:
    """`Changed: against v10, rewritten for …` if less than 70 % of the lines are kept."""
    before = rung_before(variant)
    if before is None:
        return
    changed = dict(header_of(variant))["Changed"]
    assert changed.startswith(f"against {before.id}, ")
    assert ("rewritten" in changed) == (kept_share(before, variant) < KEPT)


def test_readme_explains_why_a_rung_keeps_little_of_its_parent() -> None:
    readme = README.read_text(encoding="utf-8")
    table = readme.split("| rung | what is rewritten |\n|---|---|\n")[1].split("\n\n")[0]
    said = [name for row in table.splitlines() for name in row.split("|")[1].strip().split(", ")]
    pairs = [(v, rung_before(v)) for v in LADDER.every()]
    rewritten = [v.id for v, before in pairs if before and kept_share(before, v) < KEPT]
    assert sorted(said) == rewritten


# A device function: its head, and its body.
FUNCTION = re.compile(
    r"^(?:template <[^>]*>\n)?__device__ __forceinline__ .*?\{\n.*?^\}$", re.MULTILINE | re.DOTALL
)


def test_a_function_of_many_rungs_is_in_a_header() -> None:
    """Functions that are equal in five rungs or more must be in a header."""
    having: dict[str, list[str]] = {}
    for variant in LADDER.every():
        code = without_comments(variant.source.read_text(encoding="utf-8"))
        for function in FUNCTION.findall(code):
            having.setdefault(" ".join(function.split()), []).append(variant.id)
    assert len(having) > 60
    assert [rungs for rungs in having.values() if len(rungs) > 4] == []


def test_conditions_on_archs_are_in_one_header() -> None:
    asking = {
        path.name
        for path in KERNELS_DIR.glob("*.cu*")
        if "__CUDA_ARCH__" in without_comments(path.read_text(encoding="utf-8"))
    }
    assert asking == {"arch.cuh"}


def test_one_thread_signals_an_arrival_for_its_cta() -> None:
    """A fence by every thread costs more than one ordered atomic between two barriers."""
    for path in KERNELS_DIR.glob("*.cu*"):
        code = without_comments(path.read_text(encoding="utf-8"))
        assert "__threadfence" not in code, path.name
