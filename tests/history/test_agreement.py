"""All commands and pages give the same time, interval and method for a kernel.

Each command is run in this process with its arguments; pages and the job worker are tested through
the functions that they call. Code that chooses by itself between measured, recorded, simulated and
assumed times fails here.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agreement_cases import Case, Figures, evaluation_of, figures
from sessions_data import ncu_export
from software_nvml import SoftwareNvml, described

from engine.attention.config import find_variant
from engine.attention.evaluation import Evaluation, Latency, method_of
from engine.attention.problem import Problem
from engine.base import files
from engine.base.units import format_us
from engine.cli import main
from engine.devices import find_device
from engine.own_kernels.registry import fork_kernel
from engine.sessions.session import make_snapshot
from engine.sessions.store import SETTING, default_store

ROOT = Path(__file__).resolve().parents[2]
L4_STUDY = Problem(1, 1, 128, 64)


MEDIUM = Problem(4, 8, 512, 64)
CAUSAL = replace(MEDIUM, causal=True)
DECODE = Problem(4, 8, 1, 64, seqlen_kv=1024)
GQA = replace(MEDIUM, num_heads_kv=2)
CASES = [
    Case("simulated", "v08", MEDIUM, "L4", is_long=True),
    Case(
        "calibrated",
        "v08",
        CAUSAL,
        "L4",
        tuple((replace(CAUSAL, seqlen=s), us) for s, us in ((256, 25.0), (1024, 190.0))),
    ),
    Case("recorded", "v08", MEDIUM, "L4", ((MEDIUM, 61.0),), is_long=True),
    Case("decode", "v08", DECODE, "L4", ((DECODE, 31.0),), is_long=True),
    Case("grouped queries", "v08", GQA, "L4", ((GQA, 58.0),), is_long=True),
    Case(
        "another source",
        "v01",
        L4_STUDY,
        "L4",
        ((L4_STUDY, 543.0),),
        of_this_source=False,
        is_long=True,
    ),
    Case("own kernel", "my_v01", L4_STUDY, "L4", forked="v01", is_long=True),
    Case("auto on a PCIe part", "auto", Problem(1, 16, 256, 64), "H100 PCIe", is_long=True),
    # The default config takes 128 keys.
    Case("default that does not fit", "v12", Problem(1, 8, 256, 64), "L4", is_long=True),
]


@pytest.fixture
def ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return a command's output."""
    pytest.importorskip("cupy")
    for name in ("data", "store"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("ATTUNE_TUNED", str(tmp_path / "tuned.json"))
    monkeypatch.setenv(SETTING, str(tmp_path / "store"))

    def asked(*argv: str, code: tuple[int, ...] = (0, 1)) -> str:
        assert main(list(argv)) in code, capsys.readouterr()
        return capsys.readouterr().out

    return asked


def keep_times(case: Case) -> None:
    if case.forked:
        assert fork_kernel(find_variant(case.forked)).id == case.variant
    if case.times:
        made = [evaluation_of(case, problem, us) for problem, us in case.times]
        default_store().save(make_snapshot(made, environment={}, title="Times: test data"))


def basis(latency: Any) -> str:
    """Return origin and method of a latency or a sweep's row: `predicted by machine code`."""
    method = latency.get("method") or method_of(latency["origin"], latency["reason"])
    return f"{latency['origin']} by {method}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=pytest.mark.exhaustive if c.is_long else []) for c in CASES],
    ids=lambda case: case.name,
)
def test_all_commands_give_the_same_time(
    case: Case, ask: Callable[..., str], tmp_path: Path
) -> None:
    from engine.model.kernel import Kernel
    from engine.sessions.known_times import open_history

    keep_times(case)
    gpu = ["--gpu", case.gpu]
    told = json.loads(
        ask("evaluate", case.variant, *case.args(), *gpu, "--partial", "always", "--json")
    )
    if told["latency"] is None:
        pytest.skip("no NVRTC")
    expected, variant = figures(told["latency"]), told["variant"]
    assert told["latency"]["origin"] == "predicted"
    if "By machine code" not in told["latency"]["reason"]:
        pytest.skip("no nvdisasm or no C++ compiler")
    named = [f"{name}={value}" for name, value in told["config"].items()]
    config = [word for each in named for word in ("--config", each)]
    p = case.problem
    said: dict[str, Figures] = {}

    dissected = json.loads(ask("sass", case.variant, *case.args(), *gpu, "--json"))["latency"]
    said["sass"] = figures(dissected)
    assert basis(dissected) == basis(told["latency"])
    assert dissected["reason"] == told["latency"]["reason"]
    sizes = ["--batch", f"{p.batch}", "--heads", f"{p.num_heads}", "--seqlen", f"{p.seqlen}"]
    swept = json.loads(
        ask(
            *("sweep", variant, *gpu, *sizes, *(x for x in case.rest() if x != "--causal")),
            *(w for each in named for w in ("--tunable", each)),
            *("--causal", "yes" if p.causal else "no", "--no-execute"),
            *("--journal", str(tmp_path / "s.jsonl"), "--json"),
        )
    )
    said["sweep"] = figures(swept["rows"][0])
    assert basis(swept["rows"][0]) == basis(told["latency"])
    batch = json.loads(
        ask(
            *("recommend-batch", variant, *gpu, *config, "--heads", f"{p.num_heads}"),
            *("--seqlen", f"{p.seqlen}", *case.rest()),
            *("--batch-now", f"{p.batch}", "--max-batch", "8"),
            *("--json", "--curve"),
        )
    )
    row = next(r for r in batch["curve"] if r["batch"] == p.batch)
    said["recommend-batch"] = tuple(  # type: ignore[assignment]
        round(row[n], 3) for n in ("predicted_us", "predicted_low_us", "predicted_high_us")
    )
    assert basis(batch["model"]) == basis(told["latency"])
    ledger, _ = files.read_events(tmp_path / "data" / "predictions.jsonl", 0)
    said |= {
        f"prediction {number} that was logged": figures(each["latency"])
        for number, each in enumerate(ledger)
        if (each["variant"], each["config"]) == (variant, told["config"])
    }
    assert {name: each for name, each in said.items() if each != expected} == {}

    # The same figures, formatted in tables and sentences.
    listed = json.loads(ask("variants", variant, *gpu, *case.args(), "--json"))
    (mine,) = listed
    assert mine["rung"] == variant
    defaults = " ".join(f"{k}={v}" for k, v in told["config"].items())
    assert case.variant == "auto" or mine["config"] == defaults
    if mine["config"] == defaults:
        assert mine["simulated"] == format_us(expected[0])
        assert figures(mine["latency"]) == expected
        assert basis(mine["latency"]) == basis(told["latency"])
    taken = [us for problem, us in case.times if problem == p and case.of_this_source]
    assert [mine["known"]] == ([f"{format_us(taken[0])} recorded"] if taken else [None])

    # A known time is shown with its interval in place of the prediction.
    time = open_history().time_of(Kernel.of(variant, case.gpu, told["config"]), p)
    assert time is not None
    preferred = figures(evaluation_of(case, p, taken[0]).latency) if taken else expected
    assert figures(time.latency) == preferred
    of_row = (row["latency_us"], row["low_us"], row["high_us"])
    assert tuple(round(us, 3) for us in of_row) == preferred
    assert row["origin"] == time.origin == ("recorded" if taken else "predicted")
    (at_p, *_) = [*(r for r in batch["recommendations"] if r["batch"] == p.batch), row]
    assert tuple(at_p[name] for name in ("latency_us", "low_us", "high_us")) == of_row

    counted = tmp_path / "ncu.csv"
    passes = find_variant(variant).passes
    counted.write_bytes(ncu_export(*((launch.entry, 600_000) for launch in passes)))
    imported = ask("profile", variant, *case.args(), *gpu, *config, "--import", str(counted))
    (duration,) = (line for line in imported.splitlines() if "duration" in line)
    assert format_us(expected[0]) in duration
    if p.flops < 1e8:  # executed whole; the ladder's other kernels are simulated
        shown = evaluation_of(replace(case, variant=variant), p, 9_999.0)
        path = default_store().save(
            make_snapshot(
                [replace(shown, config=told["config"], source_sha256="")], environment={}, title="R"
            )
        )
        report = tmp_path / "r.md"
        ask("report", path, "-o", str(report))
        _, _, advice = report.read_text().replace("\\", "").partition("## What to try next")
        said_now = {f"{time.origin.capitalize()} {format_us(time.us)}"}
        assert set(re.findall(r"([A-Z]\w+ [\d.,]+ \S+) now", advice)) == said_now
        ask("rerun", path, *gpu, "--save")
        store = default_store()
        (name,) = (i.name for i in store.list() if i.title == "Repeated: R")
        (repeated,) = store.open(name).opened()
        assert repeated.latency is not None
        assert figures(repeated.latency) == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", [CASES[0], *CASES[2:5]], ids=lambda case: case.name)
@pytest.mark.usefixtures("ask")
def test_pages_and_worker_agree_with_the_commands(case: Case) -> None:
    """After the worker has compiled and simulated, pages look the figures up."""
    from app.tune import variants_frame
    from engine.base.schema import decode
    from engine.choose.batch.alternatives import Situation, rank_options
    from engine.jobs.worker import run_single
    from engine.model.kernel import Kernel
    from engine.pipeline.evaluate import Evaluator
    from engine.pipeline.request import EvaluationRequest, preview
    from engine.pipeline.simulated_launches import known_machine_code, read_machine_code
    from engine.sessions.importers.nsight_compute import counters_table
    from engine.sessions.known_times import open_history

    keep_times(case)
    history = open_history()
    kernel = Kernel.of(case.variant, case.gpu)
    made = history.estimate(kernel, case.problem)
    if not made.by_machine_code or made.latency is None:
        pytest.skip("no nvdisasm or no C++ compiler")
    request = EvaluationRequest(
        case.variant, case.problem, kernel.config, gpu=case.gpu, partial="always"
    )
    events: list[dict[str, Any]] = []
    with Evaluator(history) as evaluator:
        runner = SimpleNamespace(
            evaluator=evaluator,
            run=SimpleNamespace(write_maps=lambda *_: None),
            event=lambda *_, **fields: events.append(fields),
        )
        run_single(runner, SimpleNamespace(job_id="j", task="evaluate"), request)  # type: ignore[arg-type]
    worked = decode(Evaluation, events[-1]["result"])
    assert worked.latency == made.latency

    looked_up = history.doing("look up")
    seen = preview(request, looked_up)
    assert seen.latency == made.latency
    assert looked_up.missing == []
    options, _ = rank_options(
        Situation(kernel, case.problem, None), [kernel.variant], (), None, history
    )
    accept = next(o for o in options if o.kind == "accept")
    time = history.time_of(kernel, case.problem)
    assert time is not None
    accepted = (accept.latency_us, accept.low_us, accept.high_us, accept.basis)
    assert accepted == (time.us, time.low_us, time.high_us, time.latency.basis)
    line = variants_frame.line(seen, None, history.at(case.problem, case.gpu))
    assert line.latency is not None
    assert figures(line.latency) == figures(time.latency)
    assert line.latency.origin == time.origin
    drawn = variants_frame.chart_frame([line])
    references = [us for _, us in case.times] if not case.of_this_source else []
    assert {time.us, *references} <= set(drawn["median_us"])
    ours, others = (drawn[(drawn["name"] == case.variant) == mine] for mine in (True, False))
    assert list(ours["median_us"]) == [time.us]
    assert not set(ours["color"]) & set(others["color"])
    assert list(others["name"]).count("Times kernel (abababab)") == len(references)

    code = read_machine_code(request, history)
    assert known_machine_code(request, history) == code

    counted = replace(
        evaluation_of(case, case.problem, 600.0),
        config=kernel.config,
        latency=Latency("recorded", 600.0, 600.0, 600.0, "Nsight Compute counted it."),
        notes=("Duration: 600 us",),
    )
    (row,) = counters_table([counted], history).texts
    assert format_us(made.latency.median_us) in row


@pytest.mark.exhaustive  # simulates the other GPUs' kernels, too: a minute
def test_alternatives_agree_with_their_evaluations(ask: Callable[..., str]) -> None:
    told = json.loads(
        ask(
            *("recommend-batch", "v01", "--gpu", "L4", "--heads", "1", "--seqlen", "128"),
            *("--alternatives", "--batch-now", "1", "--max-batch", "4", "--json"),
        )
    )
    here = [
        o
        for o in told["options"]
        if (o["device"], o["batch"]) == ("L4", 1) and o["by_machine_code"]
    ]
    assert len(here) > 1
    for option in here:
        config = [w for k, v in option["config"].items() for w in ("--config", f"{k}={v}")]
        evaluated = json.loads(
            ask(
                *("evaluate", option["variant"], "--gpu", "L4", "-S", "128", *config),
                *("--partial", "always", "--json"),
            )
        )
        named = {"median_us": "latency_us", "low_us": "low_us", "high_us": "high_us"}
        assert figures({n: option[o] for n, o in named.items()}) == figures(evaluated["latency"])


def test_all_code_passes_the_history_to_what_it_calls() -> None:
    """Code that chooses times without the history could disagree with the rest."""
    asked = {"evaluate": 3, "preview": 2, "Evaluator": 1, "choose": 4, "known_rung": 3}
    exempt = {"engine/pipeline/selfcheck.py"}  # only checks correctness
    found = 0
    for path in (p for top in ("engine", "app") for p in (ROOT / top).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        if not any(f"{ask}(" in text for ask in asked):  # parsing takes seconds
            continue
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if (most := asked.get(node.func.id)) is None or name in exempt:
                continue
            if not _is_imported_from_engine(path, node.func.id):
                continue
            found += 1
            handed = len(node.args) >= most or any(k.arg == "history" for k in node.keywords)
            assert handed, f"{name}:{node.lineno} asks {node.func.id} without the history"
    assert found > 10


def _is_imported_from_engine(path: Path, name: str) -> bool:
    modules = (
        "engine.pipeline.evaluate",
        "engine.pipeline.request",
        "engine.choose.auto",
        "engine.kernel_figures",
    )
    return any(
        isinstance(node, ast.ImportFrom)
        and str(node.module).startswith(modules)
        and any(alias.name == name for alias in node.names)
        for node in ast.walk(ast.parse(path.read_text()))
    )


def test_a_part_of_a_gpu_has_its_own_persistent_ctas() -> None:
    from engine.model.kernel import Kernel

    for part, num_sms in (("H200 MIG 1g.18gb", 16), ("H200 MIG 3g.71gb", 60), ("H200", 132)):
        assert Kernel.of("v19", find_device(part)).config["num_ctas"] == num_sms


@pytest.mark.parametrize(
    ("part", "is_old"),
    [("H200 MIG 1g.18gb", False), ("H200 (66 SMs)", False), ("H200 (66 SMs)", True)],
)
@pytest.mark.usefixtures("ask")
def test_times_of_a_part_of_a_gpu_are_not_the_whole_gpu_s(part: str, is_old: bool) -> None:
    """One kernel was timed on the whole GPU and on a part of it. Old files name the whole GPU for
    both, and the number of SMs."""
    from made_up_history import MadeUpHistory, Times

    from engine.choose.auto import choose
    from engine.choose.batch.recommend import recommend_batch
    from engine.choose.batch.types import BatchRequest
    from engine.history.history import Prediction
    from engine.history.known_time import times_of
    from engine.model.kernel import Kernel
    from engine.sessions.known_times import KnownTimes, score

    near = replace(MEDIUM, batch=1)
    known = {"H200": (20.0, 6.0), part: (90.0, 24.0)}  # two batch sizes each
    unknown, made = MadeUpHistory(), {}
    for gpu, both in known.items():
        kernel = Kernel.of("v08", gpu)
        passes = unknown.estimate(kernel, MEDIUM).passes
        timed = [
            evaluation_of(Case("", "v08", MEDIUM, gpu), p, us)
            for p, us in zip((MEDIUM, near), both, strict=True)
        ]
        made[gpu] = [replace(e, passes=passes) for e in timed]
    files_of = [
        replace(e, device="H200" if is_old else e.device) for each in made.values() for e in each
    ]
    default_store().save(make_snapshot(files_of, environment={}, title="Times: test data"))
    of_all = KnownTimes(default_store())
    history = MadeUpHistory(of_all)

    for gpu, both in known.items():
        own = MadeUpHistory(Times({gpu: times_of(made[gpu], session="Times: test data")}))
        kernel = Kernel.of("v08", gpu)
        time = history.time_of(kernel, MEDIUM)
        assert time is not None
        assert (time.us, time.origin) == (both[0], "recorded")
        estimated = history.estimate(kernel, MEDIUM)
        assert estimated.calibrated_on == 2
        assert estimated.latency == own.estimate(kernel, MEDIUM).latency
        asked = BatchRequest("v08", gpu=gpu, heads=8, seqlen=512, head_dim=64, max_batch=8)
        assert recommend_batch(asked, history).table.equals(recommend_batch(asked, own).table)
        assert choose(MEDIUM, kernel.device, history=history) == choose(
            MEDIUM, kernel.device, history=own
        )
        e = made[gpu][0]
        said = Prediction(
            "2025", e.variant, e.config, MEDIUM, gpu, e.source_sha256, estimated.latency
        )
        (scored,) = score([said], of_all.all()).scores
        assert scored.time.latency.median_us == both[0]
    third = Kernel.of("v08", "H200 MIG 2g.35gb")
    assert history.time_of(third, MEDIUM) == unknown.time_of(third, MEDIUM)


def test_a_part_of_a_gpu_is_used_everywhere(
    software_nvml: SoftwareNvml, request: pytest.FixtureRequest
) -> None:
    """The driver gives it the GPU's name, and fewer SMs than the table."""
    from made_up_history import compiled_on_an_l4

    from app.shared import machine
    from engine.choose.batch.recommend import recommend_batch
    from engine.choose.batch.types import BatchRequest
    from engine.model.kernel import Kernel
    from engine.pipeline.request import EvaluationRequest, resolve
    from engine.search.space import Space, SweepOptions

    name = "L4 (16 SMs)"
    part = find_device(name)
    software_nvml.has(described("L4", num_sms=16))
    machine.local_gpu.cache_clear()
    request.addfinalizer(machine.local_gpu.cache_clear)

    history, problem = compiled_on_an_l4(), Problem(8, 8, 512, 64)
    kernel = Kernel.of("v13", part)
    assert kernel.config["num_ctas"] % 16 == 0
    asked_for = EvaluationRequest("v13", problem, gpu=name)
    for each in (asked_for, replace(asked_for, gpu=None)):
        assert resolve(each).kernel == kernel
    assert Kernel.of("v13", "L4") == Kernel.of("v13", find_device("L4"))
    assert machine.device_of(name) == part
    space = Space(("v13",), (problem,), own_values=False)
    (point, *_) = space.points(SweepOptions(gpu=name))
    asked = BatchRequest("v13", gpu=name, heads=8, seqlen=512, head_dim=64, max_batch=8)
    table = recommend_batch(asked, history).table
    assert table.equals(recommend_batch(replace(asked, gpu=part), history).table)
    made = history.estimate(kernel, problem).latency
    assert made is not None
    assert made.median_us == table["predicted_us"].iloc[7]
    assert point.request.config["num_ctas"] % 16 == 0


@pytest.mark.slow  # compiles and simulates
@pytest.mark.parametrize(("name", "problem"), [("v08", CAUSAL), ("v13", MEDIUM)])
def test_a_batch_has_one_time_whatever_the_largest_batch_is(name: str, problem: Problem) -> None:
    """CTAs of different lengths (a causal mask, persistent CTAs) are scheduled one by one."""
    from engine.choose.batch.batch_table import predict_curve
    from engine.history import History
    from engine.model.kernel import Kernel

    history, kernel = History(), Kernel.of(name, "L4")
    if not history.estimate(kernel, problem).by_machine_code:
        pytest.skip("no nvdisasm or no C++ compiler")
    for most in (8, 17, 1024):
        curve = predict_curve(
            kernel, problem, range(1, most + 1), history, None, by_machine_code=True
        )
        for batch in (3, 4, 8):
            made = history.estimate(kernel, replace(problem, batch=batch)).latency
            assert made is not None
            shown = curve.table["predicted_us"].iloc[batch - 1]
            assert shown == pytest.approx(made.median_us), (most, batch)
