"""`auto`: the kernel it chooses, from which times, and the reason it gives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from made_up_history import Times
from shared_builds import SHARED, own_cache
from words import raises, says

from engine.attention.config import (
    TunedConfig,
    find_variant,
    fitting_config,
    problem_class,
    save_tuned,
    variant_from,
)
from engine.attention.evaluation import CALIBRATED, Latency, Resources
from engine.attention.plan import BF16_CAPABILITY, capability_reason
from engine.attention.problem import Problem, presets
from engine.base.errors import AttuneError, InvalidProblem, UnknownName
from engine.choose.auto import candidates as tables
from engine.choose.auto import choose, chosen_variants, decided_by
from engine.choose.auto.candidates import (
    Row,
    Table,
    changed_since,
    code_digest,
    read_table,
)
from engine.choose.auto.choice import candidates_for
from engine.choose.auto.renew import GPUS, _Ranking
from engine.cli import main
from engine.cuda_source.sources import read_sources
from engine.devices import find_device
from engine.history import History, KnownTime, Time
from engine.history.known_time import NOT_COMPARABLE
from engine.model.kernel import Kernel
from engine.pipeline.request import EvaluationRequest, resolve
from kernels.ladder import LADDER

SHIPPED_TABLES = tables.FOLDER
SHIPPED = [capability for capability in GPUS if read_table(capability) is not None]
L4 = find_device("L4")
SMALL = Problem(1, 8, 128, 64)
LARGE = Problem(1, 8, 4096, 64)
CONFIG_V12 = {"num_warps": 8, "row_warps": 1, "keys_per_warp": 32, "row_tiles": 1}
CONFIG_V11 = LADDER.by_id("v11").default_config()


def with_times(*times: KnownTime) -> History:
    return History(Times({"L4": times}), work="look up")


def row(problem: Problem, variant: str, config: dict[str, int], us: float, beside: float) -> Row:
    return Row(
        *(problem.head_dim, problem.causal, problem.seqlen, problem.num_keys),
        *(problem.batch * problem.num_heads, problem.head_group, variant, config, us),
        *("v08", beside),
    )


@pytest.fixture
def put_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Table], None]:
    """Return a function that replaces the shipped table of a GPU."""
    monkeypatch.setattr(tables, "FOLDER", tmp_path)

    def put(made: Table) -> None:
        name = f"sm_{made.compute_capability.replace('.', '')}.json"
        (tmp_path / name).write_text(made.to_text())

    return put


@pytest.fixture
def table(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    nothing_ships: None,  # noqa: ARG001
    put_table: Callable[[Table], None],
) -> Callable[..., Table]:
    """Replace the shipped table of the L4; no known times and no tuned configs.

    Times simulated by other tests and shipped times are hidden too: by those v08 is faster than
    the row's v12.
    """
    cache = own_cache(tmp_path / "cache", [name for name in SHARED if name != "sass"])
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(cache))
    monkeypatch.setenv("ATTUNE_TUNED", str(tmp_path / "tuned.json"))

    def put(*rows: Row, sources: dict[str, str] | None = None) -> Table:
        own = {v.id: code_digest(v) for v in LADDER} if sources is None else sources
        made = Table("8.9", "L4", 58, "2026-11-22", "NVRTC 13.5", own, rows)
        put_table(made)
        return made

    put(row(SMALL, "v12", CONFIG_V12, 3.1, 4.0), row(LARGE, "v11", CONFIG_V11, 300.0, 310.0))
    return put


@dataclass(frozen=True)
class Simulated(History):
    """A history with simulated times by variant; variants that are not named have no time."""

    us: Mapping[str, float] = field(default_factory=dict)
    measured_us: Mapping[str, float] = field(default_factory=dict)  # measured times
    calibrated: tuple[str, ...] = ()  # variants of `us` with a calibrated time
    spilling: tuple[str, ...] = ()  # all others are known not to spill

    def resources(self, kernel: Kernel, _: Problem) -> tuple[Resources, ...]:
        spilled = 8 * (kernel.variant.id in self.spilling)
        return (Resources("attention_forward", "sm_89", 128, 255, 0, 0, spilled, 0, 0),)

    def time_of(self, kernel: Kernel, _: Problem) -> Time | None:
        name = kernel.variant.id
        if (us := self.measured_us.get(name)) is not None:
            return Time(us, us, us, "measured", "", 0, "session mine", "")
        if (us := self.us.get(name)) is None:
            return None
        points = int(name in self.calibrated)
        reason = f"By machine code. {CALIBRATED} 1 known time." if points else "By machine code."
        return Time(us, us, us, "predicted", "machine code", points, "", reason)


LOOKED_UP = Simulated(work="look up")  # without any time


@pytest.mark.usefixtures("table")
def test_the_fastest_kernel_on_this_problem_is_chosen() -> None:
    """A time for this problem outranks the kernel of the nearest row."""
    known = Simulated(us={"v12": 3.3, "v11": 5.0, "v08": 3.2})
    small = choose(SMALL, L4, history=known)
    assert small.variant.id == "v08"
    assert small.is_final
    assert "Simulated 3.2 µs for B1 H8 S128 D64 fp16 on L4" in small.reason
    assert says(small.reason, "beside_another", "3.3 µs of v12")
    assert says(small.reason, "within_ranking_error")
    assert LADDER.by_id("v08").idea in small.reason
    far = choose(SMALL, L4, history=replace(known, us={"v12": 3.0, "v11": 6.0}))
    assert (far.variant.id, far.config) == ("v12", CONFIG_V12)
    assert says(far.reason, "beside_another", "6 µs of v11", "2.00×")
    equal = choose(SMALL, L4, history=replace(known, us={"v12": 3.0, "v11": 3.0}))
    assert equal.variant.id == "v11"


@pytest.mark.usefixtures("table")
def test_no_ratio_of_a_calibrated_and_an_uncalibrated_time_is_written() -> None:
    """A calibrated and an uncalibrated time are ranked by value, but no ratio is given."""
    known = Simulated(us={"v12": 3.0, "v11": 6.0})
    for calibrated in (("v12",), ("v11",)):
        found = choose(SMALL, L4, history=replace(known, calibrated=calibrated))
        assert found.variant.id == "v12"
        assert found.reason.endswith(f"), {NOT_COMPARABLE}.")
        assert "×" not in found.reason
    both = choose(SMALL, L4, history=replace(known, calibrated=("v11", "v12")))
    assert both.reason.endswith("2.00×.")
    found = choose(SMALL, L4, history=replace(known, measured_us={"v11": 2.0}))
    assert found.variant.id == "v11"
    assert found.reason.endswith(f"), {NOT_COMPARABLE}.")


@pytest.mark.usefixtures("table")
def test_without_cached_times_the_row_of_the_table_is_chosen() -> None:
    nothing = Simulated(work="look up")
    small = choose(SMALL, L4, history=nothing)
    assert (small.variant.id, small.config, small.is_final) == ("v12", CONFIG_V12, False)
    assert says(small.reason, "time_known_yet")
    # A time of another candidate alone does not change the choice.
    assert choose(SMALL, L4, history=replace(nothing, us={"v11": 1.0})).variant.id == "v12"
    assert choose(SMALL, L4, history=replace(nothing, measured_us={"v11": 1.0})).variant.id == "v11"
    slower = Times({"L4": [timed("v08", 9.0)]})
    beside = replace(nothing, us={"v11": 1.0}, measured_us={"v08": 9.0}, times=slower)
    assert choose(SMALL, L4, history=beside).variant.id == "v12"  # v11 is predicted
    assert choose(replace(LARGE, seqlen=3000), L4, history=nothing).variant.id == "v11"


@pytest.mark.usefixtures("table")
def test_spilling_kernels_are_chosen_only_if_timed_or_all_spill() -> None:
    known = Simulated(us={"v12": 3.0, "v11": 5.0, "v08": 6.0})
    assert choose(SMALL, L4, history=known).variant.id == "v12"
    spills = replace(known, spilling=("v12",))
    unspilled = choose(SMALL, L4, history=spills)
    assert unspilled.variant.id == "v11"
    assert "v12" not in unspilled.reason
    looked_up = replace(spills, work="look up")
    assert choose(SMALL, L4, history=looked_up).variant.id == "v11"
    assert decided_by(SMALL, L4, looked_up) != decided_by(SMALL, L4, replace(known, work="look up"))
    all_spill = replace(known, spilling=tuple(v.id for v in LADDER))
    assert choose(SMALL, L4, history=all_spill).variant.id == "v12"
    measured = replace(spills, times=Times({"L4": [replace(timed("v12", 3.0), config=CONFIG_V12)]}))
    assert choose(SMALL, L4, history=measured).variant.id == "v12"


@pytest.mark.usefixtures("table")
def test_whether_a_kernel_spills_is_looked_up_without_compiling(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tmp_path / "nothing compiled"
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(cache))
    looked_up = History(work="look up")
    assert choose(SMALL, L4, history=looked_up).variant.id == "v12"
    assert decided_by(SMALL, L4, looked_up) == decided_by(SMALL, L4, History())
    assert not cache.exists()


@pytest.mark.parametrize(
    ("gpu", "num_ctas"), [("H100 PCIe", 114), ("H200", 132), ("H100 NVL", 132)]
)
def test_no_candidate_has_the_persistent_ctas_of_another_gpu(gpu: str, num_ctas: int) -> None:
    device = find_device(gpu)
    seen: list[Kernel] = []

    class Watching(Simulated):
        def time_of(self, kernel: Kernel, _: Problem) -> Time | None:
            seen.append(kernel)
            return None

    choose(Problem(4, 16, 2048, 64), device, history=Watching())
    persistent = [k.config["num_ctas"] for k in seen if "num_ctas" in k.config]
    assert persistent
    assert {n % num_ctas for n in persistent} == {0}


@pytest.mark.parametrize("gpu", ["L4", "A100 80GB SXM", "H200"])
def test_one_query_with_few_keys_may_use_a_kernel_for_short_prompts(gpu: str) -> None:
    """One query with few keys may use v12, whose CTA holds all keys; no row covers that."""

    def names(keys: int) -> set[str]:
        problem = Problem(1, 8, 1, 64, seqlen_kv=keys)
        found = candidates_for(problem, find_device(gpu), History(work="look up"))
        return {kernel.variant.id for kernel in found}

    assert {"v12", "v14"} <= names(64)
    assert "v12" not in names(8192)


def test_a_rung_of_the_table_competes_in_its_default_config_too() -> None:
    """Between rows it may be faster: v14 takes 7.4 µs here, 12.4 with its row's config."""
    problem = Problem(1, 8, 4, 128, num_heads_kv=2, seqlen_kv=2000)
    device = find_device("RTX 4090")
    found = candidates_for(problem, device, History(work="look up"))
    assert len({kernel.variant.id for kernel in found}) > 1
    for variant in {kernel.variant for kernel in found}:
        default = fitting_config(variant, {}, problem, device)
        assert Kernel.of(variant, device, default) in found


@pytest.mark.usefixtures("table")
def test_a_row_whose_config_does_not_fit_is_skipped() -> None:
    # v12's row is the nearest, but 400 keys do not fit its config.
    assert choose(replace(SMALL, seqlen=400), L4, history=LOOKED_UP).variant.id == "v11"
    shared = Problem(1, 8, 128, 64, num_heads_kv=2)
    assert choose(shared, L4, history=LOOKED_UP).variant.gqa
    # A problem that no rung supports is left to the pipeline, which gives the reason.
    odd = Problem(1, 1, 128, 80)
    choice = choose(odd, L4, history=LOOKED_UP)
    assert choice.variant.unsupported(odd, choice.config) is not None


@pytest.mark.usefixtures("table")
def test_without_a_table_the_highest_fitting_rung_is_chosen(tmp_path: Path) -> None:
    assert (
        "tcgen05" in choose(SMALL, find_device("B200"), history=LOOKED_UP).reason
    )  # from the table of sm_89
    (tmp_path / "sm_89.json").unlink()
    wide = replace(SMALL, head_dim=128)
    for dtype, rung in (("float16", "v14"), ("bfloat16", "v06")):
        turing = choose(replace(wide, dtype=dtype), find_device("T4"), history=LOOKED_UP)
        assert turing.variant.id == rung
        # With default configs a CTA of either would exceed the shared memory.
        assert turing.config != turing.variant.default_config()
        assert says(turing.reason, "no_table_has", "T4", "sm_75")


def test_a_kernel_changed_since_its_table_is_reported(table: Callable[..., Table]) -> None:
    made = table(row(SMALL, "v12", CONFIG_V12, 3.1, 4.0), sources={"v12": "0" * 16})
    assert "v12" in changed_since(made, LADDER)
    reason = choose(SMALL, L4, history=LOOKED_UP).reason
    assert says(reason, "source_changed_since", "2026-11-22")


def test_comments_do_not_count_as_a_change(tmp_path: Path) -> None:
    variant = LADDER.by_id("v12")
    copy = tmp_path / variant.source.name
    for header in variant.source.parent.glob("*.cuh"):
        (tmp_path / header.name).write_text(header.read_text())
    text = variant.source.read_text()
    copy.write_text(f"{text}\n// a remark\n")
    assert code_digest(replace(variant, source=copy)) == code_digest(variant)
    copy.write_text(f"{text}\nint more;\n")
    assert code_digest(replace(variant, source=copy)) != code_digest(variant)


def test_a_damaged_table_gives_a_one_sentence_message(
    table: Callable[..., Table], tmp_path: Path
) -> None:
    table()
    (tmp_path / "sm_89.json").write_text('{"format": 1, "rows": 3}')
    with raises(AttuneError, "auto_table", "sm_89.json"):
        read_table((8, 9))
    assert says(choose(SMALL, L4, history=LOOKED_UP).reason, "auto_table")


def timed(variant: str, us: float, source_sha256: str = "") -> KnownTime:
    """Return a known time of the present source, or of `source_sha256`."""
    found = find_variant(variant)
    return KnownTime(
        name=variant,
        is_sdpa=False,
        config=found.default_config(),
        problem=SMALL,
        device="L4",
        latency=Latency("measured", us, us, us, "made up"),
        when="2026-11-22T08:00:00+00:00",
        session="mine",
        file="",
        shipped=False,
        checked=True,
        source_sha256=source_sha256 or read_sources(found.source).source_sha256,
    )


@pytest.mark.usefixtures("table")
def test_kernels_that_were_timed_are_candidates_and_those_of_another_source_are_not() -> None:
    quick = with_times(timed("v10", 2.5), timed("v01", 500.0))
    faster = choose(SMALL, L4, history=quick)
    assert faster.variant.id == "v10"
    assert "Measured (session mine) 2.5 µs" in faster.reason
    assert says(faster.reason, "beside_another")  # the second fastest, if simulated
    foreign = choose(SMALL, L4, history=with_times(timed("v10", 2.5, "ab" * 32)))
    assert foreign.variant.id == "v12"


@pytest.mark.usefixtures("table")
def test_a_tuned_config_is_a_candidate() -> None:
    tuned = TunedConfig(
        gpu="L4",
        variant="v10",
        problem_class=problem_class(SMALL),
        config={"block_n": 32},
        problem=SMALL.label(),
        median_us=2.9,
        origin="predicted",
        when="2026-11-22T08:00:00+00:00",
        strategy="exhaustive",
        evaluations=18,
    )
    save_tuned(tuned)
    choice = choose(SMALL, L4, history=Simulated(us={"v12": 3.0, "v10": 2.0}))
    assert (choice.variant.id, choice.config["block_n"]) == ("v10", 32)
    assert says(choice.reason, "config_your_tuned")
    # It is ranked by its time for this problem, not for the one it was tuned on.
    assert choose(SMALL, L4, history=Simulated(us={"v12": 3.0, "v10": 4.0})).variant.id == "v12"


@pytest.mark.usefixtures("table")
def test_a_request_for_auto_is_resolved_with_its_reason() -> None:
    request = EvaluationRequest("auto", SMALL, {"keys_per_warp": 16}, gpu="L4")
    resolved = resolve(request, LOOKED_UP)
    assert resolved.variant.id == "v12"
    assert resolved.config == {**CONFIG_V12, "keys_per_warp": 16}
    assert says(resolved.config_origin.describe(), "given_rest", "keys_per_warp", "auto")
    names, problems = ["auto", "v01"], [SMALL, LARGE]
    assert chosen_variants(names, problems, L4, LOOKED_UP) == ("v12", "v11", "v01")
    by_time = chosen_variants(names, problems, L4, with_times(timed("v10", 2.5)))
    assert by_time == ("v10", "v11", "v01")


@pytest.mark.usefixtures("table")
def test_auto_explains_unsupported_problems() -> None:
    with raises(InvalidProblem, "auto_takes_other", "v12", "num_splits"):
        choose(SMALL, L4, {"num_splits": 4}, LOOKED_UP)
    with raises(InvalidProblem, "no_gpu_to_choose_for"):
        choose(SMALL, None)
    odd = replace(SMALL, head_dim=77)
    with raises(InvalidProblem, "auto_takes_none", "D = 77", "32, 64, 96, 128") as no:
        chosen_variants(["auto", "v01"], [odd], L4, LOOKED_UP)
    assert choose(odd, L4, history=LOOKED_UP).reason.startswith(str(no.value))
    assert chosen_variants(["auto"], [odd, SMALL], L4, LOOKED_UP) == ("v12",)
    with raises(UnknownName, "auto_is_no_variant"):
        find_variant("auto")


@pytest.mark.parametrize(
    ("options", "name", "fact"),
    [
        (["--head-dim", "77"], "ladder_without_head_dim", "D = 77"),
        (["--config", "keys_per_warp=7"], "value_not_offered", "keys_per_warp=7"),
    ],
)
def test_the_command_line_names_only_kernels_that_run(
    options: list[str], name: str, fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["auto", "--gpu", "L4", *options]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert says(shown.err, name, fact)


@pytest.mark.usefixtures("table")
def test_the_command_line_names_kernel_and_reason(
    capsys: pytest.CaptureFixture[str], set_history: Callable[[object], None]
) -> None:
    set_history(Simulated(us={"v12": 3.1}))
    assert main(["auto", "--gpu", "L4", "-H", "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["variant"], told["config"]) == ("v12", CONFIG_V12)
    assert "Simulated 3.1 µs" in told["reason"]
    assert main(["profile", "auto", "--gpu", "L4", "-H", "8"]) == 0
    assert "evaluate v12" in capsys.readouterr().out
    assert main(["auto", "--renew", "--capability", "1.0"]) == 2


class Compiled(Simulated):
    """A history that compiles every kernel and has no time of any."""

    def resources(self, kernel: Kernel, problem: Problem) -> tuple[Resources, ...]:
        return kernel.resources(problem)


@pytest.mark.exhaustive
@pytest.mark.parametrize("capability", GPUS, ids=str)
def test_autos_choices_for_presets_do_not_spill(
    capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTUNE_TUNED", str(tmp_path / "tuned.json"))
    device, seen, spilled = find_device(GPUS[capability]), set(), []
    for preset in presets():
        for direction in ("forward", "backward"):
            problem = replace(preset.problem, direction=direction)
            kernel = choose(problem, device, history=Compiled(work="compile")).kernel
            if not kernel.fits(problem):
                continue  # no kernel supports the preset
            key = (kernel.variant.id, kernel.variant.defines(problem, kernel.config))
            if key in seen:
                continue
            seen.add(key)
            if any(r.uses_local_memory for r in kernel.resources(problem)):
                spilled.append((preset.name, direction, kernel.describe()))
    assert len(seen) >= 10
    assert spilled == []


def test_a_config_that_spills_is_not_ranked(tmp_path: Path) -> None:
    source = LADDER.by_id("v01").source
    for header in source.parent.glob("*.cuh"):
        (tmp_path / header.name).write_text(header.read_text())
    copy, bounds = tmp_path / source.name, "__launch_bounds__(NUM_THREADS"
    copy.write_text(source.read_text().replace(bounds, f"{bounds}, 1536 / NUM_THREADS"))
    ranking = _Ranking(L4, [SMALL], lambda _: None)
    ranking.add_defaults([variant_from(copy, "v01")])
    assert list(ranking.rows()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "capability",
    [SHIPPED[0], *(pytest.param(c, marks=pytest.mark.exhaustive) for c in SHIPPED[1:])],
    ids=str,
)
def test_an_outdated_table_is_reported(
    capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTUNE_TUNED", str(tmp_path / "tuned.json"))
    table = read_table(capability)
    assert table is not None
    changed, device = changed_since(table, LADDER), find_device(GPUS[capability])
    for each in table.rows:
        if each.seqlen == 1 or each.group > 1:
            continue
        problem = Problem(1, each.heads, each.seqlen, each.head_dim, causal=each.causal)
        if capability < BF16_CAPABILITY and LADDER.by_id(each.variant).work.math_unit == "fma":
            problem = replace(problem, dtype="bfloat16")
        choice = choose(problem, device, history=LOOKED_UP)
        assert choice.variant.id == each.variant
        assert (says(choice.reason, "source_changed_since")) == (each.variant in changed)


@pytest.mark.parametrize("gpu", ["A100 80GB SXM", "L4", "RTX 5090", "H200"])
def test_gradients_have_a_separate_table(
    gpu: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ATTUNE_TUNED", str(tmp_path / "tuned.json"))
    table, device = read_table((8, 0), "backward"), find_device(gpu)
    assert table is not None
    assert tables.table_for(device.compute_capability, "backward") == table
    v26 = find_variant("v26")
    for each in table.rows:
        heads = round(each.heads * (device.num_sms or 1) / table.num_sms)
        problem = Problem(
            1, heads, each.seqlen, each.head_dim, causal=each.causal, direction="backward"
        )
        choice = choose(problem, device, history=LOOKED_UP)
        if gpu == "H200":  # a rung for Hopper only, which is in no table
            assert (choice.variant, choice.config) == (v26, v26.default_config())
            assert says(choice.reason, "table_defaults_alone")
            fastest = Simulated(us={"v24": 20.0, "v25": 30.0, "v26": 10.0})
            assert choose(problem, device, history=fastest).variant == v26
            faster = Simulated(us={"v24": 9.0, "v25": 30.0, "v26": 10.0})
            assert choose(problem, device, history=faster).variant.id == "v24"
        elif Kernel.of(each.variant, device, each.config).fits(problem):
            assert (choice.variant.id, choice.config) == (each.variant, each.config)


def test_hopper_rungs_are_only_for_hopper_and_unranked_ones_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, put_table: Callable[[Table], None]
) -> None:
    monkeypatch.setenv("ATTUNE_TUNED", str(tmp_path / "tuned.json"))
    shutil.copytree(SHIPPED_TABLES, tables.FOLDER, dirs_exist_ok=True)
    hopper = [v for v in LADDER if v.arch_specific]
    for gpu, words in (("L4", "v15 needs compute capability 9.0"), ("B200", "9.0 alone")):
        reasons = [capability_reason(v, "float16", find_device(gpu)) for v in hopper]
        assert words in (reasons[0] or "")
        assert all(reasons)
    assert not any(capability_reason(v, "float16", find_device("H200")) for v in hopper)
    long, h200 = Problem(1, 16, 2048, 128), find_device("H200")
    table = tables.table_for((9, 0))
    assert table is not None
    assert {v.id for v in hopper} <= set(table.sources)
    assert not says(choose(long, h200, history=LOOKED_UP).reason, "table_defaults_alone")
    of_hopper = {v.id for v in hopper}
    older = {name: digest for name, digest in table.sources.items() if name not in of_hopper}
    put_table(replace(table, sources=older))
    named = ", ".join(v.id for v in hopper)
    reason = choose(long, h200, history=LOOKED_UP).reason
    assert says(reason, "table_defaults_alone", named, "wgmma")
    older = {name: digest for name, digest in table.sources.items() if name != hopper[-1].id}
    put_table(replace(table, sources=older))
    reason = choose(long, h200, history=LOOKED_UP).reason
    assert says(reason, "table_defaults_alone", hopper[-1].id, "wgmma")
    assert (
        "tcgen05"
        in choose(Problem(1, 16, 2048, 128), find_device("B200"), history=LOOKED_UP).reason
    )


def test_no_kernel_is_named_if_none_supports_the_problem() -> None:
    none = choose(replace(SMALL, dtype="float32"), L4)
    assert (none.is_supported, none.note()) == (False, none.reason)
    assert choose(SMALL, L4).is_supported
