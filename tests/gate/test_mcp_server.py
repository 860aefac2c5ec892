"""The commands as MCP tools: short answers, limited to a folder, time limits, cancelling."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from words import raises, says

from engine.attention.config import find_variant, load_tuned, save_tuned
from engine.cli.mcp_server import (
    Refused,
    Rights,
    Tools,
    _path,
    _problem,
    _run,
    environment_of,
    served,
    shortened,
)
from engine.cuda_source.sources import OutsideFolder
from engine.history.history import predictions_path
from engine.own_kernels.registry import fork_kernel
from engine.sessions.known_times import open_history
from engine.sessions.session import make_snapshot, start_session
from engine.sessions.store import SETTING, default_store
from tests.gate.repositories import ONE_PROBLEM, edit, kernel_file, repository

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="mcp is an extra")


def call(coroutine):  # type: ignore[no-untyped-def]
    return asyncio.run(coroutine)


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(Rights(repository(tmp_path / "r", "v01").resolve()), tmp_path / "data")


def test_long_answers_are_truncated_with_a_note() -> None:
    short = shortened({"a": list(range(40)), "b": "x" * 9000, "c": 1 / 3})
    assert len(short["a"]) == 13
    assert short["a"][-1] == "… 28 more"
    assert len(short["b"]) < 700
    assert short["c"] == 0.3333


def test_a_problem_becomes_options() -> None:
    assert _problem("B4 H32 HKV8 S1 KV4096 D128 bf16") == [
        *("--batch=4", "--heads=32", "--seqlen=1", "--head-dim=128"),
        *("--seqlen-kv=4096", "--heads-kv=8", "--dtype=bf16"),
    ]
    assert "--causal" in _problem("B1 causal")


@pytest.mark.parametrize(
    "kernel",
    ["/etc/passwd.cu", "../secret.cu", "--help", "v01; ls", "kernels/none.cu", "attune-gate.toml"],
)
def test_files_outside_or_without_kernel_are_refused(tools: Tools, kernel: str) -> None:
    with pytest.raises(Refused):
        call(tools.predict(kernel, "B1 H2 S64"))


@pytest.mark.parametrize(
    ("tool", "arguments", "message", "words"),
    [
        ("explain", {"kernel": "v01"}, "argument_missing", ("explain", "problem")),
        ("recommend_batch", {"kernel": "v01", "seqlen": "x"}, "argument_invalid", ("seqlen",)),
        ("counts", {"kernel": "v01", "problem": "B1", "gpus": "L4"}, "unknown_argument", ("gpus",)),
    ],
)
def test_invalid_and_unknown_arguments_get_a_sentence(
    tools: Tools, tool: str, arguments: dict[str, str], message: str, words: tuple[str, ...]
) -> None:
    from mcp.server.mcpserver.exceptions import ToolError

    (asked,) = (each for each in served(tools) if each.name == tool)
    with pytest.raises(ToolError) as error:
        call(asked.run(arguments, None))
    assert says(str(error.value), message, *words)
    assert "\n" not in str(error.value)


def test_an_error_is_its_sentence_alone(tools: Tools) -> None:
    from mcp.server.mcpserver.exceptions import ToolError

    (asked,) = (each for each in served(tools) if each.name == "sweep")
    arguments = {"kernel": "v01", "problem": "B1 H2 S64", "keep": True}
    with pytest.raises(ToolError) as error:
        call(asked.run(arguments, None, convert_result=True))
    assert says(str(error.value), "write_not_allowed")
    assert str(error.value).startswith("keep ")


def test_compare_refuses_a_snapshot_beside_a_source(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "r" / "a.json.gz").touch()
    source = f"kernels/{kernel_file(tmp_path / 'r', 'v01').name}"
    with raises(Refused, "snapshot_and_source"):
        call(tools.compare("a.json.gz", source))


def test_a_header_outside_is_refused(tools: Tools, tmp_path: Path) -> None:
    secret = tmp_path / "secret.cuh"
    secret.write_text("// secret\n")
    source = kernel_file(tmp_path / "r", "v01")
    edit(source, ("#include", f'#include "{secret}"\n#include'))
    with pytest.raises(OutsideFolder):
        call(tools.predict(f"kernels/{source.name}", "B1 H2 S64"))


def test_nothing_is_saved_without_permission(tools: Tools) -> None:
    with raises(Refused, "write_not_allowed"):
        call(tools.sweep("v01", "B1 H2 S64", keep=True))


def test_tools_know_the_times_of_sessions_and_write_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`predict` must not differ from `attune evaluate`, also without permission to write."""
    from sessions_data import evaluation_maker, make_latency
    from tuned_data import ENTRY, PROBLEM

    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "data"))
    for name in (SETTING, "ATTUNE_TUNED"):
        monkeypatch.delenv(name, raising=False)
    saved = evaluation_maker(problem=PROBLEM, baselines=(), other_latencies=())
    default_store().save(make_snapshot([saved], environment={}, title="Saved"))
    session = start_session("Open")
    session.add(replace(saved, latency=make_latency(13.0, 5)))
    save_tuned(ENTRY)
    own = fork_kernel(find_variant("v01"))

    for name, value in environment_of(Rights(tmp_path), tmp_path / "of the server").items():
        monkeypatch.setenv(name, value)
    known = {t.session: t.latency.median_us for t in open_history().at(PROBLEM, "L4")}
    assert (known["Saved"], known["Open"]) == (12.5, 13.0)
    assert load_tuned() == [ENTRY]
    assert find_variant(own.id).source == own.source
    assert predictions_path().is_relative_to(tmp_path / "of the server")


def test_a_call_that_takes_too_long_ends() -> None:
    with raises(Refused, "call_time_limit"):
        call(_run(["selfcheck"], Path.cwd(), _environment(), 0.2))
    assert not _children("selfcheck")


def test_a_cancelled_call_ends_its_process() -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(_run(["selfcheck"], Path.cwd(), _environment(), 60.0))
        while not _children("selfcheck"):
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    call(cancelled())
    assert not _children("selfcheck")


def _environment() -> dict[str, str]:
    return dict(os.environ) | {"PYTHONPATH": _path()}


@pytest.mark.slow
def test_python_modules_of_the_folder_are_not_imported(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "r" / "engine.py").write_text("raise SystemExit('taken over')\n")
    (tmp_path / "r" / "numpy.py").write_text("raise SystemExit('taken over')\n")
    assert call(tools.gate("HEAD"))["unchanged"] == ["v01"]


def _children(argument: str) -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE and argument in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.slow
def test_a_client_of_the_sdk_gets_answers(tmp_path: Path) -> None:
    from mcp import StdioServerParameters
    from mcp.client import Client
    from mcp.client.stdio import stdio_client

    folder = repository(tmp_path / "r", "v01", settings=ONE_PROBLEM)
    root = Path(__file__).resolve().parents[2]
    environment = dict(os.environ) | {"PYTHONPATH": str(root)}
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "engine", "mcp"], cwd=folder, env=environment
    )
    source = f"kernels/{kernel_file(folder, 'v01').name}"

    async def talk() -> dict[str, object]:
        answers: dict[str, object] = {}
        async with Client(stdio_client(server)) as client:
            listed = await client.list_tools()
            answers["tools"] = {tool.name for tool in listed.tools}
            assert all(tool.description for tool in listed.tools)
            for name, arguments in (
                ("advice", {"kernel": source, "problem": "B1 H8 S128"}),
                ("gate", {}),
                ("check", {"kernel": "v01"}),
                ("check of the ladder", {"kernel": source}),
                ("sweep", {"kernel": "v01", "problem": "D999"}),
            ):
                result = await client.call_tool(name.split()[0], arguments)
                answers[name] = (result.is_error, result.content[0].text)
        return answers

    found = call(talk())
    assert found["tools"] == {
        *("check", "explain", "counts", "advice", "predict", "sweep", "compare", "gate"),
        "recommend_batch",
    }
    failed, text = found["advice"]
    assert not failed
    assert len(text) < 8000
    advice = json.loads(text)["advice"]
    assert {"conflicts", "few_ctas"} <= {each["code"] for each in advice}
    assert advice[1]["place"].startswith("v01")
    assert json.loads(found["gate"][1])["unchanged"] == ["v01"]
    swept = json.loads(found["sweep"][1])
    assert (swept["best"], [each["points"] for each in swept["without_time"]]) == ([], [2])
    assert found["check of the ladder"][0]  # its error is one sentence, without the SDK's words
    assert "executing tool" not in found["check of the ladder"][1]
    assert "rename" in found["check of the ladder"][1]
    checked = json.loads(found["check"][1])  # no native code was run
    assert (checked["status"], checked["executed"]) == ("PASSED", "machine code in software")
