"""Every command with invalid input: exit code 2, one sentence, and no file created."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from engine.cli import main

SHIPPED = "20261121T000000Z_l4_v01_7-problems.json"
SDPA = "20261121T000000Z_h200_sdpa_43-problems.json"

# {dir}: an empty folder. {none}: no such file. {cut}, {empty}, {binary}: files that are no
# snapshot, kernel, cubin or table. {text}: a text file. /nope: a folder that does not exist.
LINES = """
nonsense
selfcheck --gpu L5
selfcheck --gpu ''
selfcheck --jason
variants --add {none}.cu
variants --add {dir}
variants --add {binary}.cu
variants --add {empty}.cu
variants --add /proc/self/mem
variants --forget nothing
variants v08 nope
variants v08 --tree
variants v08 --gpu L4 --diff v11
variants --gpu L5
variants --gpu L4 --diff v99
variants --diff v08
variants --gpu L4 -S 0
variants --gpu L4 -D 1000000
variants --gpu L4 --heads 6 --heads-kv 4 --diff v08
variants --preset gpt9 --gpu L4
variants --markdown --into {none}/x.md
variants --markdown --into /proc/x.md
variants --markdown --into {dir}
variants --markdown --into {binary}
variants --into {text}
auto --gpu L5
auto --gpu L4 -S -1
auto --gpu L4 --config stages=x
auto --gpu L4 --config nothing=1
auto --renew --capability 1.0
auto --renew --capability x
auto --capability 8.9
auto --gpu L4 --dtype fp8
evaluate
evaluate v99 --gpu L4
evaluate v01 --gpu L5
evaluate {none}.cu --gpu L4
evaluate {dir} --gpu L4
evaluate {dir}/ --gpu L4
evaluate {binary}.cu --gpu L4
evaluate {empty}.cu --gpu L4
evaluate {cut}.cu --gpu L4
evaluate /proc/self/environ --gpu L4
evaluate v01 --gpu L4 -B 0
evaluate v01 --gpu L4 -H -3
evaluate v01 --gpu L4 -D 0
evaluate v01 --gpu L4 -S 99999999999999
evaluate v01 --gpu L4 -S 1e3
evaluate v01 --gpu L4 --seqlen-kv 0
evaluate v01 --gpu L4 --causal -S 128 --seqlen-kv 64
evaluate v01 --gpu L4 --window 0
evaluate v01 --gpu L4 --softcap 0
evaluate v01 --gpu L4 --softcap nan
evaluate v01 --gpu L4 --seqlens 5,x
evaluate v01 --gpu L4 --seqlens 0,5
evaluate v08 --gpu L4 -H 6 --heads-kv 4
evaluate v01 --gpu L4 --config block_n=32.5
evaluate v01 --gpu L4 --config block_n=1 --config block_n=2
evaluate v01 --gpu L4 --timeout 0
evaluate v01 --gpu L4 --timeout inf
evaluate v01 --gpu L4 --inputs strange
evaluate v01 --gpu L4 --coverage
evaluate v01 --gpu L4 --clock fast
evaluate v01 --gpu L4 --clock -5
evaluate v01 --gpu L4 --clock 0
evaluate v01 --gpu L4 --schedule sideways
evaluate v01 --gpu L4 --backend opencl
occupancy v01
occupancy v01 --gpu L4 --threads 64
occupancy --gpu L4
occupancy --gpu L4 --threads 64
occupancy --gpu L4 --threads -1 --registers 32
occupancy --gpu L4 --threads 2048 --registers 32
occupancy --gpu L4 --threads 64 --registers 256
occupancy --gpu L4 --threads 64 --registers 32 --smem -1
occupancy --gpu L4 --threads 64 --registers 32 --ctas 0
occupancy --gpu L4 --threads 64 --registers 32 --ctas 99999999999999999999999
occupancy --gpu H100 --threads 64 --registers 32 --cluster 0
occupancy --gpu H100 --threads 64 --registers 32 --cluster 3 --ctas 4
devices nothing
devices ''
recommend-batch v01 --gpu L4
recommend-batch v99 --gpu L4 -S 128
recommend-batch v01 --gpu L4 -S 0
recommend-batch v01 --gpu L4 -S 128 --max-batch 0
recommend-batch v01 --gpu L4 -S 128 --batch-now 0
recommend-batch v01 --gpu L4 -S 128 --target 0
recommend-batch v01 --gpu L4 -S 128 --measured {none}.csv
recommend-batch v01 --gpu L4 -S 128 --measured {dir}
recommend-batch v01 --gpu L4 -S 128 --measured {binary}
recommend-batch v01 --gpu L4 -S 128 --measured {empty}
recommend-batch v01 --gpu L4 -S 128 --measured {text}
recommend-batch v01 --gpu L4 -S 128 --predict 1,2
recommend-batch v01 --gpu L4 -S 128 --predict 1,0,128
recommend-batch v01 --gpu L4 -S 128 --price L5=1
recommend-batch v01 --gpu L4 -S 128 --price -1
recommend-batch v01 --gpu L4 -S 128 --curve
recommend-batch v01 --gpu L4 -S 128 --measured-kernel x
recommend-batch v01 --gpu L4 -S 128 --requests-per-day 1 --tokens-per-day 2
recommend-batch v01 --gpu L4 -S 128 --budget-ms 0
sweep
sweep v99 --gpu L4 -S 64
sweep v01 --gpu L4 -S 64:16
sweep v01 --gpu L4 -S 64:128:x1
sweep v01 --gpu L4 -S 1:99999999999
sweep v01 --gpu L4 -S ,
sweep v01 --gpu L4 -S 64 --tunable nothing=1 --dry-run
sweep v01 --gpu L4 -S 64 --tunable block_n --dry-run
sweep v01 --gpu L4 -S 64 --journal /nope/x
sweep v01 --gpu L4 -S 64 --journal /proc/x
sweep v01 --gpu L4 -S 64 --journal {dir}
sweep v01 --gpu L4 -S 64 --journal {text}/x
sweep v01 --gpu L4 -S 64 --journal {text}
sweep --resume {none}
sweep --resume {dir}
sweep --resume {binary}
sweep --resume {text}
sweep --resume /proc/self/environ
sweep --resume {none} --journal {none}
sweep v01 --gpu L4 -S 64 --budget-evaluations 0
sweep v01 --gpu L4 -S 64 --dask nowhere
sweep v01 --gpu L4 -S 64 --dtype fp8
tuned v99
tuned --gpu L5
bench --preset nothing
bench --preset small --seconds -1
bench --preset small --variant v99
bench --preset small --out {dir}
bench --preset small --out /nope/x.json
sessions nonsense
sessions --since yesterday
sessions show {none}.json
sessions show {dir}
sessions show {cut}
sessions show {empty}
sessions show {binary}
sessions show /proc/self/environ
sessions show {none}/{none}
sessions remove {none}.json
sessions remove ../../{text}
sessions remove /etc/passwd
sessions import {none}.csv
sessions import {dir}
sessions import {binary}
sessions import {cut}
sessions import {text} --gpu L4 --variant v01 -S 128
sessions import {text} -B 0
sessions export {shipped} --as csv -o {none}
sessions export {shipped} --as nvbench -o {text}
sessions export {shipped} --as nvbench -o /nope/x
sessions export {shipped} --as nvbench -o /proc/x
sessions export {shipped} --as nvbench -o {dir}
sessions export {shipped} --as nvbench -o {none} --variant v99
sessions export {cut} --as nvbench -o {none}
sessions decide {shipped}
sessions decide {shipped} --hours -1
sessions decide {shipped} --hours nan
sessions decide {shipped} --why because
sessions decide {shipped} --phase 'x: nothing 3'
sessions decide {shipped} --phase 'x: latency_us -1'
sessions decide {none} --hours 1
report {shipped}
report {shipped} -o {none}.pdf
report {shipped} -o /nope/x.html --no-advice
report {shipped} -o /proc/x.html --no-advice
report {shipped} -o {dir} --no-advice
report {cut} -o {none}.html
report {dir} -o {none}.html
rerun {none}.json
rerun {cut}
rerun {shipped} --only nothing
rerun {shipped} --gpu L5
rerun {shipped} --json --csv
roofline
roofline v99 --gpu L4
roofline v01 --gpu L5
roofline v01 --sweep {none}
roofline --sweep {none}
roofline --sweep {dir}
roofline --sweep {binary}
roofline --sweep {text}
roofline v01 --gpu L4 --csv
roofline v01 --gpu L4 -D 0
sass v99 --gpu L4
sass {none}.cu --gpu L4
sass {none}.cubin --gpu L4
sass {dir} --gpu L4
sass {binary}.cubin --gpu L4
sass {empty}.cubin --gpu L4
sass {cut}.cubin --gpu L4
sass /proc/self/mem --gpu L4
sass v01 --gpu L5
sass v01 --arch sm_1
sass v01 --arch nonsense
sass v01 --gpu L4 --clock fast
sass v01 --clock 1000
sass v01 --gpu L4 --lines 0
sass v01 --gpu L4 --timeline /nope/x.json
sass v01 --gpu L4 --grid 1
sass v01 --gpu L4 --entry nothing
sass {plain}.cu --gpu L4 --grid 0 --block 32
sass {plain}.cu --gpu L4 --grid 1,1,1,1 --block 32
sass {plain}.cu --gpu L4 --grid 1 --block 2048
sass {plain}.cu --gpu L4 --grid 1 --block 32 --smem -1
sass {plain}.cu --gpu L4 --grid 1 --block 32 --arg strange
sass {plain}.cu --gpu L4 --grid 1 --block 32 --entry nothing
sass {plain}.cu --gpu L4 --grid 1 --block 32 --include {none}
sass {plain}.cu --gpu L4 --grid 1 --block 32 --define 1=2
sass {plain}.cu --gpu L4 --grid 1 --block 32 --flag=--nothing
gate
gate {none}
gate nothing-like-a-revision
gate {dir} {none}
gate {text}
gate {dir} {dir} --kernel v99
gate {dir} {dir} --last 0
gate --history v99
gate --history v08 --last 0
gate --history v08 --accept
gate HEAD --markdown /nope/x.md
mcp --seconds 0
compare
compare {shipped}
compare {shipped} {none}
compare {shipped} {cut}
compare {shipped} {dir}
compare {shipped} {sdpa} --baseline {none}
compare {shipped} {sdpa} --pair v01 v99
compare {shipped} --pair 3:v01 v05
compare {shipped} {sdpa} --by best --pair v01 v05
compare {shipped} {sdpa} --time lukewarm
predictions --json --csv
profile v99
profile v05 --gpu L5
profile v05 --gpu L4 --import {none}
profile v05 --gpu L4 --import {dir}
profile v05 --gpu L4 --import {binary}
profile v05 --gpu L4 --import {text}
profile v05 --gpu L4 -S 0
"""
PLAIN = 'extern "C" __global__ void plain(float* x) { x[threadIdx.x] = 1.0f; }\n'


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("ATTUNE_SESSIONS", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir").mkdir()
    contents = {
        "cut": b'{"format": "attune-session", "version": 1, "evaluations": [{',
        "empty": b"",
        "binary": bytes(range(256)) * 8,
        "text": b"Nothing,of\nthe,kind\n",
    }
    for name, content in contents.items():
        for end in ("", ".cu", ".cubin"):
            (tmp_path / f"{name}{end}").write_bytes(content)
    (tmp_path / "plain.cu").write_text(PLAIN)
    found = {name: str(tmp_path / name) for name in (*contents, "dir", "none", "plain")}
    return {**found, "shipped": SHIPPED, "sdpa": SDPA}


def outcome(argv: list[str]) -> int:
    try:
        return main(argv)
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize("line", LINES.strip().splitlines())
def test_wrong_input_gives_a_one_sentence_error_and_exit_code_2(
    line: str,
    places: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if line.startswith("sass {plain}"):
        request.getfixturevalue("sass_in_this_process")
    before = {*tmp_path.rglob("*"), *Path("/").iterdir()}
    code = outcome([part.format(**places) for part in shlex.split(line)])
    out, err = capsys.readouterr()
    said = err.splitlines()  # a sweep prints its points and journal first
    assert code == 2, out + err
    assert [text for text in said if text.startswith("error: ")] == said[-1:], err
    assert said[-1].endswith((".", "?")), err
    assert "Traceback" not in err
    if "--json" in line.split():
        assert json.loads(out)["error"]["exit_code"] == 2
    else:
        assert out == ""
    assert {*tmp_path.rglob("*"), *Path("/").iterdir()} == before


@pytest.mark.parametrize(
    ("setting", "command"),
    [
        ("ATTUNE_TUNED={binary}", "tuned"),
        ("ATTUNE_TUNED={dir}", "tuned"),
        ("ATTUNE_SESSIONS={binary}", "sessions"),
        ("ATTUNE_SESSIONS={binary}/x", "sessions"),
        ("ATTUNE_SESSIONS=nothing://x", "sessions"),
        ("ATTUNE_CACHE_DIR={binary}", "sessions"),
    ],
)
def test_invalid_paths_in_settings_are_wrong_input(
    setting: str,
    command: str,
    places: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    name, _, value = setting.partition("=")
    monkeypatch.setenv(name, value.format(**places))
    test_wrong_input_gives_a_one_sentence_error_and_exit_code_2(
        command, places, capsys, tmp_path, request
    )


def test_without_a_command_all_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 0
    assert "selfcheck" in capsys.readouterr().out
