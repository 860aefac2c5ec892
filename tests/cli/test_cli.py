"""The command line: JSON output, exit codes, one-sentence errors."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from words import says

from engine.cli import main, parser

ROOT = Path(__file__).resolve().parents[2]
EVALUATE = [
    "evaluate",
    "v01",
    "--batch",
    "1",
    "--heads",
    "1",
    "--seqlen",
    "128",
    "--head-dim",
    "64",
    "--gpu",
    "L4",
    "--backend",
    "cpu",
    "--json",
]


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    code = main(argv)
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_coverage_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    short = ["evaluate", "v01", "--seqlen", "70", "--head-dim", "32", "--backend", "cpu"]
    shape = [*short, "--batch", "1", "--heads", "1", "--coverage"]
    assert main(shape) == 2
    assert says(capsys.readouterr().err, "coverage_without_check")
    assert main([*shape, "--check"]) == 0
    out = capsys.readouterr().out
    assert says(out, "lines_device_code")
    assert "v01_fa1_baseline.cu" in out
    assert says(out, "not_executed_so")  # the branch of element.cuh for the other dtype
    code, encoded = run_json(capsys, *shape, "--check", "--json")
    assert code == 0
    assert encoded["line_coverage"][0]["file"] == "v01_fa1_baseline.cu"
    assert encoded["line_coverage"][1]["not_compiled"]


def test_a_cache_folder_that_cannot_be_created_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is an error before the builds, which could not be stored."""
    (tmp_path / "file").write_text("")
    for folder, why in (("file", "not a folder"), ("file/cache", "Not a directory")):
        monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path / folder))
        assert main(EVALUATE) == 2
        assert says(capsys.readouterr().err, "cache_not_made", str(tmp_path / folder), why)


def test_an_unwritable_cache_folder_gives_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("os.access", lambda *_: False)  # as root can write everywhere
    assert main(["devices"]) == 0
    assert says(capsys.readouterr().err, "compiled_kept_nowhere", str(tmp_path))


def test_an_unavailable_default_cache_folder_gives_one_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("ATTUNE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["occupancy", "v01", "--gpu", "L4"]) == 0
    err = capsys.readouterr().err
    folder = tmp_path / "file" / "attune"
    assert says(err, "cannot_be_made", str(folder), "Not a directory")
    assert says(err, "set_attune_cache")
    assert err.count("\n") == 1


def test_evaluate_prints_the_whole_object(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run_json(capsys, *EVALUATE)
    assert code == 0, out["reason"]
    assert out["status"] == "PASSED"
    assert out["variant"] == "v01"
    assert out["problem"]["seqlen"] == 128
    assert out["device"] == "L4"
    assert out["resources"]["registers_per_thread"] > 0
    assert out["resources"]["smem_bytes"] > 0
    assert out["resources"]["spill_bytes"] == 0
    occupancy = out["occupancy"]
    assert occupancy["ctas"] == 2
    assert occupancy["ctas_per_sm"] >= 1
    assert 0 < occupancy["occupancy"] <= 1
    assert occupancy["active_warps_per_sm"] == occupancy["ctas_per_sm"] * 8
    assert occupancy["limiter"] in ("warps", "registers", "shared memory", "ctas")
    assert 0 < occupancy["waves"] < 1
    correctness = out["correctness"]
    assert correctness["passed"] is True
    assert correctness["max_abs_err"] <= correctness["tolerance"]
    assert out["latency"]["origin"] == "predicted"
    assert out["latency"]["low_us"] <= out["latency"]["median_us"] <= out["latency"]["high_us"]
    assert out["execution"]["backend"] == "cpu"


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [
        pytest.param(["--check"], marks=pytest.mark.exhaustive),
        ["--schedule", "random", "--seed", "7"],
    ],
)
def test_evaluate_in_other_builds_and_orders(
    capsys: pytest.CaptureFixture[str], extra: list[str]
) -> None:
    code, out = run_json(capsys, *EVALUATE, *extra)
    assert code == 0, out["reason"]
    if "--check" in extra:
        assert out["execution"]["build"] == "check"
    else:
        assert out["execution"]["schedule"] == "random"
        assert out["execution"]["seed"] == 7


def test_evaluate_prints_readable_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EVALUATE[:-1]]) == 0
    out = capsys.readouterr().out
    assert "predicted" in out
    assert says(out, "not_gpu_latency")
    assert "limiter" in out


def test_a_skipped_problem_is_not_passed(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "evaluate v01 --head-dim 48 --gpu L4 --backend cpu --json".split()
    code, out = run_json(capsys, *argv)
    assert code == 1
    assert out["status"] == "SKIPPED"
    assert "head_dim 48" in out["reason"]
    assert out["correctness"] is None
    assert out["latency"] is None


def test_more_memory_than_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "evaluate",
        "v01",
        "-B",
        "60000",
        "-H",
        "64",
        "-S",
        "65536",
        "-D",
        "128",
        "--gpu",
        "L4",
        "--backend",
        "cpu",
        "--json",
    ]
    code, out = run_json(capsys, *argv)
    assert code == 1
    assert out["status"] == "OUT_OF_MEMORY"
    assert "GB" in out["reason"] or "TB" in out["reason"] or "TiB" in out["reason"]


def test_cuda_without_a_gpu_gives_a_one_sentence_error(capsys: pytest.CaptureFixture[str]) -> None:
    from engine.backends.cuda import why_not_cuda

    if why_not_cuda(None) is None:
        pytest.skip("this machine has a GPU")
    code, out = run_json(capsys, *"evaluate v01 --gpu L4 --backend cuda --json".split())
    assert code == 1
    assert out["status"] == "LAUNCH_ERROR"
    assert out["reason"].count("\n") == 0


@pytest.mark.parametrize(
    ("argv", "name", "facts"),
    [
        ("evaluate v99 --gpu L4", "unknown_name", ("variant", "'v99'")),
        ("evaluate v01 --gpu L5", "gpu_unknown", ("L4",)),
        ("evaluate v01 --gpu L4 --seqlen 0", "size_too_small", ("seqlen", "0")),
        ("evaluate v01 --gpu L4 --batch -3", "size_too_small", ("batch", "-3")),
        ("evaluate v01 --gpu L4 --seqlen 99999999999", "size_too_large", ("seqlen",)),
        ("evaluate v01 --gpu L4 --config block_n", "config_form", ("'block_n'",)),
        ("evaluate v01 --gpu L4 --config =64", "config_form", ("'=64'",)),
        ("evaluate v01 --gpu L4 --preset gpt9", "unknown_name", ("preset", "'gpt9'")),
        ("evaluate v05 --gpu L4 --config foo=3", "tunable_unknown_here", ("v05", "foo")),
        ("evaluate v05 --gpu L4 --config block_n=7", "value_not_offered", ("block_n=7", "32")),
        ("evaluate auto --gpu L4 --config foo=3", "tunable_unknown_here", ("auto", "foo")),
        (
            "recommend-batch v05 --gpu L4 -S 64 --config block_n=7",
            "value_not_offered",
            ("v05", "block_n=7"),
        ),
        ("sass v05 --gpu L4 --config block_n=7", "value_not_offered", ("v05", "block_n=7")),
        ("bench --preset small --variant v05:block_n=7", "value_not_offered", ("v05", "block_n=7")),
        ("occupancy --gpu L4 --threads 0 --registers 32", "cta_threads_range", ("0",)),
        ("occupancy --gpu L4 --threads 256 --registers 999", "thread_registers_range", ("999",)),
        (
            f"occupancy --gpu L4 --threads 256 --registers 9 --smem {10**20}",
            "cta_smem_range",
            ("0 to 2,147,483,647",),
        ),
        ("evaluate v01 --gpu L4 --preset=", "unknown_name", ("preset", "''")),
        ("devices Q100", "gpu_unknown", ("'Q100'",)),
    ],
)
def test_bad_usage_gives_a_one_sentence_error_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], argv: str, name: str, facts: tuple[str, ...]
) -> None:
    assert main(argv.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says(captured.err, name, *facts)
    assert "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("argv", "name", "facts"),
    [
        ("evaluate v01 --gpu L4 --timeout nan", "positive_form", ("--timeout", "nan")),
        ("evaluate v01 --gpu L4 --timeout -1", "positive_form", ("--timeout", "-1")),
        ("evaluate v01 --gpu L4 --seed -1", "seed_range", ("--seed", "-1")),
        (
            "evaluate v01 --gpu L4 --seed 9223372036854775808",
            "seed_range",
            ("--seed", "9223372036854775808"),
        ),
        ("evaluate v01 --gpu L4 --seed 1e23", "whole_number_form", ("--seed", "'1e23'")),
        ("evaluate v01 --seqlen 1.5", "whole_number_form", ("--seqlen", "'1.5'")),
        (
            "recommend-batch v01 --gpu L4 -S 64 --utilisation 2",
            "share_range",
            ("--utilisation", "2"),
        ),
        ("recommend-batch v01 --gpu L4 -S 64 --target 101", "percent_range", ("--target", "101")),
        ("recommend-batch v01 --gpu L4 -S 64 --target x", "number_form", ("--target", "'x'")),
        (
            "recommend-batch v01 --gpu L4 -S 64 --requests-per-day -1",
            "positive_form",
            ("--requests-per-day", "-1"),
        ),
        ("sessions decide x.json --hours x", "number_form", ("--hours", "'x'")),
        ("variants --markdown --json", "see_help", ("--json", "--markdown")),
        ("sass v01 --gpu L4 --lines -1", "size_too_small", ("--lines", "-1")),
        ("sweep v01 --gpu L4 --seed -1", "seed_range", ("--seed", "-1")),
        ("sessions --since notadate", "day_form", ("--since", "'notadate'")),
        ("sessions list --until 2026-13-01", "day_form", ("--until", "'2026-13-01'")),
    ],
)
def test_an_option_out_of_range_is_named(
    capsys: pytest.CaptureFixture[str], argv: str, name: str, facts: tuple[str, ...]
) -> None:
    assert main(argv.split()) == 2
    error = capsys.readouterr().err
    assert says(error, name, *facts)
    assert error.count("\n") == 1  # no usage text before it


@pytest.mark.parametrize(
    ("argv", "name", "facts"),
    [
        ("evaluate v1 --gpu L4", "unknown_name", ("'v1'", "v01")),
        ("evaluate nowhere.cu", "no_such_cu_file", ("nowhere.cu",)),
        ("variants --add nowhere.cu", "no_such_cu_file", ("nowhere.cu",)),
        ("auto --capability 8.9", "capability_without_renew", ()),
        ("auto --renew --gpu L4", "renew_by_capability", ()),
        ("variants --forget nope", "none_of_that_kind", ("added kernel", "'nope'")),
        ("variants --into x.md", "into_without_output", ()),
        ("variants --seqlen 64", "option_needs_gpu", ("--seqlen",)),
        (
            "occupancy --gpu L4 --threads 128 --registers 32 --seqlen-kv 64",
            "option_needs_variant",
            ("--seqlen-kv",),
        ),
        ("roofline --sweep nowhere.jsonl", "journal_missing", ("nowhere.jsonl",)),
        (f"evaluate {'a' * 5000}.cu", "file_name_too_long", (f"{'a' * 80}…",)),
        (f"report {'a' * 5000} -o x.md", "file_name_too_long", (f"{'a' * 80}…",)),
        ("compare nowhere v01", "no_file_no_snapshot", ("nowhere",)),
    ],
)
def test_bad_usage_gives_a_one_sentence_error(
    capsys: pytest.CaptureFixture[str], argv: str, name: str, facts: tuple[str, ...]
) -> None:
    assert main(argv.split()) == 2
    error = capsys.readouterr().err
    assert says(error, name, *facts)
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "name", "facts"),
    [
        ("evalute v01", "unknown_name", ("command", "evaluate")),
        ("evaluate v01 --sequlen 3", "unknown_option", ("--seqlen",)),
        ("evaluate v01 --seqlne=3", "unknown_option", ("--seqlen",)),
        ("evaluate v01 --S 64", "unknown_option", ("'--S'", "--seqlen")),
        ("evaluate v01 --backend cdua", "unknown_name", ("--backend", "cuda")),
        ("sessions decid x.json", "unknown_name", ("action", "decide")),
        ("--verison", "unknown_option", ("--version",)),
        ("--json evaluate v01", "option_before_command", ("--json",)),
        ("--gpu L4 evaluate v01", "option_before_command", ("--gpu",)),
        ("devices L4 T4", "unrecognized_arguments", ("T4",)),
    ],
)
def test_a_misspelled_option_suggests_the_nearest(
    capsys: pytest.CaptureFixture[str], argv: str, name: str, facts: tuple[str, ...]
) -> None:
    assert main(argv.split()) == 2
    error = capsys.readouterr().err
    assert says(error, name, *facts)
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        ("evaluate v99 --json", "UnknownName"),
        ("evaluate v01 --seqlne 3 --json", "BadUsage"),
        ("compare one.json --json", "InvalidProblem"),
    ],
)
def test_errors_are_json_where_that_was_asked_for(
    capsys: pytest.CaptureFixture[str], argv: str, kind: str
) -> None:
    code, told = run_json(capsys, *argv.split())
    assert code == 2
    assert (told["error"]["kind"], told["error"]["exit_code"]) == (kind, 2)
    assert told["error"]["message"]


def test_the_help_lists_every_command_in_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    listed = re.findall(r"^  ([a-z][a-z-]+)  ", capsys.readouterr().out, re.MULTILINE)
    assert sorted(listed) == sorted(parser().commands)


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"attune {project['version']}\n"


def test_options_of_streamlit_are_passed_on() -> None:
    args = parser("app").parse_args(["app", "--server.port", "8600", "--token", "--logger.level=x"])
    assert args.passed_on == ["--server.port", "8600", "--logger.level=x"]
    assert args.token


def test_occupancy_needs_no_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "occupancy --gpu L4 --threads 256 --registers 96 --smem 40960 --ctas 512 --json"
    code, out = run_json(capsys, *argv.split())
    assert code == 0
    # 96 registers · 256 threads: 2 CTAs of 65,536 registers; 2 · (40,960 + 1,024) of 102,400 bytes.
    assert out["ctas_per_sm"] == 2
    assert out["active_warps_per_sm"] == 16
    assert out["occupancy"] == pytest.approx(16 / 48)
    assert out["waves"] == pytest.approx(512 / (2 * 58))
    assert out["device"] == "L4"


def test_clusters_default_to_one_cta(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kernel = ["occupancy", "--threads", "128", "--registers", "64", "--cluster", "4"]
    assert main([*kernel, "--gpu", "H200"]) == 0
    assert says(capsys.readouterr().out.replace("\n", " "), "ctas_cluster_stay", "4")
    assert main([*kernel, "--gpu", "L4"]) == 2
    assert says(capsys.readouterr().err, "clusters_unsupported", "9.0", "8.9")
    assert main([*kernel[:-1], "-3", "--gpu", "H200"]) == 2
    assert says(capsys.readouterr().err, "cluster_size_range", "-3")


def test_occupancy_that_does_not_fit_fails(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "occupancy --gpu T4 --threads 256 --registers 32 --smem 66816 --json"
    code, out = run_json(capsys, *argv.split())
    assert code == 1
    assert out["ctas_per_sm"] == 0


def test_occupancy_of_a_variant(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run_json(capsys, *"occupancy v08 --gpu L4 -H 8 -S 512 --json".split())
    assert code == 0
    (only,) = out["passes"]
    assert only["resources"]["threads_per_cta"] == 128
    assert only["occupancy"]["ctas"] == 64
    assert main("occupancy auto --gpu L4 -H 8 -S 512".split()) == 0
    shown = capsys.readouterr()
    assert says(shown.err, "auto_takes")
    assert says(shown.out, "registers_per_thread")
    for argv, name, *facts in (
        ("occupancy v08 --gpu L4 --threads 64", "compiled_determines", "v08", "--threads"),
        ("occupancy --gpu L4 --threads 64", "threads_and_registers"),
        ("occupancy v08 --gpu T4 --dtype bf16", "those_of_have", "T4", "sm_75", "BF16"),
    ):
        assert main(argv.split()) == 2
        assert says(capsys.readouterr().err, name, *facts)


def test_variants_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["variants", "--json"]) == 0
    variants = json.loads(capsys.readouterr().out)
    assert {"v01", "v02", "v05"} <= {v["id"] for v in variants}
    code, devices = run_json(capsys, "devices", "--json")
    assert code == 0
    assert "L4" in {d["name"] for d in devices["devices"]}
    code, l4 = run_json(capsys, "devices", "nvidia l4", "--json")
    assert code == 0
    assert l4["num_sms"] == 58
    assert l4["source"]
    assert main(["variants", "v08", "v11", "--json"]) == 0
    assert [v["id"] for v in json.loads(capsys.readouterr().out)] == ["v08", "v11"]
    for argv in (["variants"], ["devices"], ["devices", "L4"]):
        assert main(argv) == 0
        shown = capsys.readouterr().out
        assert "L4" in shown or argv == ["variants"]
        assert "('" not in shown  # no Python repr of a value


def test_every_command_of_the_options_page_exists() -> None:
    """Module, function, and the types and choices of options named in commands.toml exist."""
    commands = parser().parse_args(["sessions", "decide", "one.json", "--hours", "2"])
    assert (commands.hours, commands.run.__name__) == (2.0, "run_decide")


def test_commands_accept_the_options_of_the_options_page() -> None:
    """The options in commands.toml are the parameters of the function, all of which it reads."""
    seen = 0
    waiting: list[argparse.ArgumentParser] = list(parser().commands.values())
    while waiting:
        p = waiting.pop()
        run, given = p.get_default("run"), set()
        for action in p._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
            elif action.dest != "help":
                given.add(action.dest)
        if run is not None:
            read = {f.name for f in fields(get_type_hints(run)["args"])}
            assert read - {"passed_on"} == given, p.prog
            seen += 1
    assert seen > 25


def test_help_lists_every_command_and_imports_none() -> None:
    code = "import sys; from engine.cli import main\ntry: main(['--help'])\nfinally: "
    code += "print([m for m in sys.modules if m.startswith('engine.cli.')])"
    listed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "recommend-batch" in listed
    # No module that runs a command: only those that parse the command line and print.
    assert listed.splitlines()[-1] == "['engine.cli.command_line', 'engine.cli.output']"
