"""The command line as tools of the Model Context Protocol, over standard input and output.

Each call runs one command in its own process, which has a time limit and ends when the call is
cancelled; long answers are shortened. Files outside the folder that the server was started in are
refused, except kernels that the user has added, which are named like variants. Without `--write`
the server writes nothing but the cache of compiled kernels, and without `--run` it runs no native
code of a kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from pydantic import ValidationError

from engine.attention.config import added_kernels_path, tuned_path
from engine.attention.problem import feature_options
from engine.base.errors import AttuneError, BadInput, ToolMissing, unknown
from engine.base.files import data_folder
from engine.cuda_source.sources import files_inside
from engine.gate.settings import parse_problem
from engine.sessions.session import working_folder
from engine.sessions.store import SETTING
from engine.versions.figures import variant_of

Answer: TypeAlias = dict[str, Any]
Tool: TypeAlias = Callable[..., Coroutine[Any, Any, Answer]]

MAX_SECONDS = 600.0
_MAX_ITEMS = 12  # of a list in a response
_MAX_TEXT = 600  # characters of a text in a response
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.~^@/-]*")
_INSTRUCTIONS = (
    "Attune checks and analyses CUDA attention kernels without a GPU. A kernel is the name of a "
    "variant (v08) "
    "or the path of a .cu file; a problem is written like 'B4 H8 S512 D64 causal bf16'. Times are "
    "simulated, never measured. First make a kernel right (check), then follow advice, largest "
    "gain first, and look after each edit: gate says whether it became better."
)


class Refused(BadInput):
    """A call that this server refuses."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Permissions given to the server when it was started."""

    root: Path
    write: bool = False
    run: bool = False
    seconds: float = 120.0  # time limit of one call


class Tools:
    """The tools. Every public method is a tool; its docstring is the tool's description."""

    def __init__(self, rights: Rights, data: Path) -> None:
        self._rights = rights
        self._data = data  # data folder of commands
        self._environment = environment_of(rights, data)

    def all(self) -> tuple[Tool, ...]:
        return (
            self.check,
            self.explain,
            self.counts,
            self.advice,
            self.predict,
            self.sweep,
            self.compare,
            self.gate,
            self.recommend_batch,
        )

    async def check(self, kernel: str, problem: str = "B1 H2 S203 D64", gpu: str = "L4") -> Answer:
        """Check the kernel's output: execute its machine code in software and compare with a
        float64 reference. If the server may run native code, a host build is executed on this CPU
        instead, which also finds races, missing fences and out-of-bounds accesses, each with its
        kind and source line."""
        how = (
            ["--backend=cpu"] if self._rights.run else ["--backend=machine-code", "--software-only"]
        )
        found = await self._json(
            "evaluate", self._kernel(kernel), *_problem(problem), f"--gpu={gpu}",
            *how, "--check", "--json", may_fail=True,
        )  # fmt: skip
        correctness = found.get("correctness") or {}
        return {
            "status": found["status"],
            "executed": "native code" if self._rights.run else "machine code in software",
            "reason": found["reason"],
            "max_abs_err": correctness.get("max_abs_err"),
            "tolerance": correctness.get("tolerance"),
            "findings": [
                {"code": f["pattern"], "sentence": f["sentence"], "place": f.get("place", "")}
                for f in correctness.get("findings", ())
            ],
        }

    async def explain(self, kernel: str, problem: str, gpu: str = "L4") -> Answer:
        """Explain the simulated time: busy units and warp stalls as shares, the hottest lines,
        advice."""
        code = await self._sass(kernel, problem, gpu)
        main = code["passes"][0]
        stalls = {k: v for k, v in main.get("stall_cycles", {}).items() if v}
        total = sum(stalls.values()) or 1.0
        return {
            "predicted_us": code["latency"]["median_us"],
            "busy": _largest(main.get("busy", {})),
            "stalls": _largest({k: v / total for k, v in stalls.items()}),
            "lines": [
                {"place": f"{x['file']}:{x['line']}", "warp_instructions": x["instructions"]}
                for x in main["lines"][:6]
            ],
            "advice": [{"code": a["kind"], "sentence": a["sentence"]} for a in main["advice"]],
            "notes": main["notes"],
        }

    async def counts(self, kernel: str, problem: str, gpu: str = "L4") -> Answer:
        """Count what the machine code executes, exactly: instructions by pipe, bank conflicts,
        sectors, registers, spills."""
        code = await self._sass(kernel, problem, gpu)
        return {
            "registers": code["registers"],
            "code_bytes": code["code_bytes"],
            "warp_instructions": code["instructions"],
            "shared": code["shared"],
            "global": code["global"],
            "local_sectors": sum(p["counted"]["local_sectors"] for p in code["passes"]),
            "ctas_per_sm": code["resident_ctas"],
        }

    async def advice(self, kernel: str, problem: str, gpu: str = "L4") -> Answer:
        """List what to change, the largest simulated gain first, each with its kind and source
        line."""
        code = await self._sass(kernel, problem, gpu)
        return {
            "predicted_us": code["latency"]["median_us"],
            "advice": [
                {
                    "code": each["kind"],
                    "place": each["line"],
                    "gain": each["gain"],
                    "sentence": each["sentence"],
                }
                for one in code["passes"]
                for each in one["advice"]
            ],
        }

    async def predict(self, kernel: str, problem: str, gpu: str = "L4") -> Answer:
        """Simulate the launch: its time in microseconds with a 90 % interval."""
        code = await self._sass(kernel, problem, gpu)
        return {"gpu": code["gpu"], "registers": code["registers"], **code["latency"]}

    async def sweep(
        self, kernel: str, problem: str, gpu: str = "L4", seconds: float = 60.0, keep: bool = False
    ) -> Answer:
        """Find the fastest values of the tunables by simulation. `keep` saves them as the tuned
        config, if the server may write."""
        if keep and not self._rights.write:
            raise Refused(
                "keep writes the tuned config: start the server with --write.",
                code="write_not_allowed",
            )
        kept = ["--keep"] if keep else []
        journal = self._data / f"sweep-{os.urandom(6).hex()}.jsonl"
        budget = min(max(seconds, 1.0), MAX_SECONDS)
        answer: Answer = await self._json(
            "sweep", self._kernel(kernel), *_problem(problem, sweep=True), f"--gpu={gpu}",
            "--no-execute", "--strategy=simulated", f"--budget-seconds={budget}",
            f"--journal={journal}", *kept, "--json",
            seconds=budget + 60.0, may_fail=True,
        )  # fmt: skip
        untimed = Counter(
            (row["status"], row["reason"]) for row in answer["rows"] if row["median_us"] is None
        )
        return {
            **{key: answer[key] for key in ("state", "done", "total", "best")},
            "without_time": [
                {"status": status, "reason": reason, "points": points}
                for (status, reason), points in untimed.most_common()
            ],
        }

    async def compare(self, before: str, after: str) -> Answer:
        """Compare two snapshots or two .cu files: what became worse or better."""
        paths = [str(self._inside(name)) for name in (before, after)]
        sources = [path.endswith(".cu") for path in paths]
        if all(sources):
            return await self._gate(*paths)
        if any(sources):
            raise Refused(
                f"compare takes two snapshots or two .cu files, not one of each: {before} and "
                f"{after}.",
                code="snapshot_and_source",
            )
        found = await self._json("compare", *paths, "--json", may_fail=True)
        keys = ("variant", "problem", "device", "verdict", "reason", "speedup", "findings")
        rows = [{k: row.get(k) for k in keys} for row in found.get("rows", ())]
        return {"rows": rows, "regressions": found.get("regressions", [])}

    async def gate(self, base: str = "HEAD", head: str = "") -> Answer:
        """Give a verdict on every kernel that changed between two git revisions or folders; by
        default, `head` is the working tree."""
        return await self._gate(*(self._side(name) for name in (base, head) if name))

    async def recommend_batch(
        self, kernel: str, seqlen: int, gpu: str = "L4", heads: int = 1, head_dim: int = 64
    ) -> Answer:
        """Recommend the batch size that fills the GPU, with the reason."""
        found = await self._json(
            "recommend-batch", self._kernel(kernel), f"--seqlen={seqlen}", f"--gpu={gpu}",
            f"--heads={heads}", f"--head-dim={head_dim}", "--json",
        )  # fmt: skip
        keys = ("target", "batch", "latency_us", "origin", "reason", "warning")
        return {"recommendations": [{k: r[k] for k in keys} for r in found["recommendations"]]}

    async def _gate(self, *sides: str) -> Answer:
        flags = ["--run"] if self._rights.run else []
        found = await self._json("gate", *sides, *flags, "--json", may_fail=True)
        keys = ("exit_code", "verdicts", "unchanged", "remarks")
        return {k: found[k] for k in keys}

    async def _sass(self, kernel: str, problem: str, gpu: str) -> Answer:
        name = self._kernel(kernel)
        found: Answer = await self._json("sass", name, *_problem(problem), f"--gpu={gpu}", "--json")
        return found

    def _kernel(self, name: str) -> str:
        """Return the name of a variant, or a path in the root folder whose headers are in it,
        too."""
        if "/" not in name and not name.endswith(".cu"):
            return _plain(name)
        path = self._inside(name)
        if path.suffix != ".cu":
            raise Refused(f"{name} is not a kernel source: name a .cu file.")
        files_inside(self._rights.root, path, variant_of(path).include_folders)
        return str(path)

    def _side(self, name: str) -> str:
        if (self._rights.root / name).exists() or name.startswith(("/", ".", "~")):
            return str(self._inside(name))
        return _plain(name)

    def _inside(self, name: str) -> Path:
        root = self._rights.root
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            raise Refused(
                f"{name} lies outside of {root}, which this server was started in.",
                code="file_outside",
            )
        if not path.exists():
            raise Refused(f"There is no file {name} in {root}.")
        return path

    async def _json(
        self, *arguments: str, seconds: float | None = None, may_fail: bool = False
    ) -> Any:
        """Run a command and return its shortened JSON. Raises Refused with its error sentence."""
        limit = min(seconds or self._rights.seconds, MAX_SECONDS + 60.0)
        code, out, err = await _run(arguments, self._rights.root, self._environment, limit)
        if out and (code == 0 or may_fail):
            with contextlib.suppress(ValueError):
                found = json.loads(out)
                if isinstance(found, dict) and set(found) == {"error"}:
                    raise Refused(str(found["error"].get("message", found["error"])))
                return found
        lines = err.decode("utf-8", errors="replace").strip().splitlines()
        said = [line for line in lines if line.startswith("error: ")]
        last = said[-1].removeprefix("error: ") if said else " ".join(lines[-1:])
        raise Refused(last or f"{arguments[0]} failed with exit code {code}.")


def environment_of(rights: Rights, data: Path) -> dict[str, str]:
    """Return the environment of the commands.

    Without permission to write, their data folder is `data`, but they read the user's sessions,
    tuned configs and added kernels, so that they give the times that the user sees.
    """
    environment = dict(os.environ) | {"PYTHONPATH": _path()}
    if rights.write:
        return environment
    of_user = {"working": working_folder(), added_kernels_path().name: added_kernels_path()}
    for name, path in of_user.items():
        if not (data / name).is_symlink():
            data.mkdir(parents=True, exist_ok=True)
            (data / name).symlink_to(path.absolute())
    sessions = os.environ.get(SETTING, "").strip() or str(data_folder() / "sessions")
    return environment | {
        "ATTUNE_DATA_DIR": str(data),
        SETTING: sessions,
        "ATTUNE_TUNED": str(tuned_path().absolute()),
    }


async def _run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: float
) -> tuple[int, bytes, bytes]:
    """Run a command and return (exit code, output, errors). Its process ends with the call."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        # -P: modules in the current folder must not shadow Attune's.
        *("-P", "-m", "engine", *arguments),
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        raise Refused(
            f"{arguments[0]} took longer than {seconds:.0f} s, the limit of a call: ask for a "
            "smaller problem, or start the server with --seconds N.",
            code="call_time_limit",
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # Shielded: a cancelled call still waits until its process is gone.
            await asyncio.shield(process.wait())
    return process.returncode or 0, out, err


def _path() -> str:
    """Return PYTHONPATH with this package's folder first."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])


def shortened(value: Any) -> Any:
    """Return a copy with long lists and texts shortened, each with a note."""
    if isinstance(value, dict):
        return {key: shortened(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        short = [shortened(each) for each in value[:_MAX_ITEMS]]
        return short + [f"… {len(value) - _MAX_ITEMS} more"] * (len(value) > _MAX_ITEMS)
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        return f"{value[:_MAX_TEXT]}…"
    return round(value, 4) if isinstance(value, float) else value


def _problem(text: str, *, sweep: bool = False) -> list[str]:
    """Return the command line options of a problem. Raises BadInput."""
    problem = parse_problem(text)
    options = {
        "batch": problem.batch,
        "heads": problem.num_heads,
        "seqlen": problem.seqlen,
        "head-dim": problem.head_dim,
        "seqlen-kv": problem.seqlen_kv,
        "heads-kv": problem.num_heads_kv,
        "dtype": {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}[problem.dtype],
    }
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    given += feature_options(problem)
    if problem.causal:
        given.append("--causal=yes" if sweep else "--causal")
    return given


def _plain(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Refused(f"{name!r} is not a valid name: give a variant (v08), a revision or a path.")
    return name


def _largest(shares: Mapping[str, float]) -> dict[str, float]:
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return {name: round(share, 3) for name, share in ranked[:5] if share}


def serve(rights: Rights) -> None:
    """Serve until the input ends. Raises ToolMissing if the SDK is not installed."""
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError as error:
        raise ToolMissing(
            f"The MCP server needs the official SDK ({error}): pip install -e '.[mcp]'"
        ) from None
    with TemporaryDirectory(prefix="attune-mcp-") as data:
        server: Any = MCPServer(
            "attune",
            instructions=_INSTRUCTIONS,
            log_level="WARNING",
            tools=served(Tools(rights, Path(data))),
        )
        server.run("stdio")


def served(tools: Tools) -> list[Any]:
    """Return the tools as the SDK's, which refuse invalid and unknown arguments in a sentence."""
    from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
    from mcp.server.mcpserver.tools.base import Tool as SdkTool

    class Checked(SdkTool):  # type: ignore[misc]
        async def run(self, arguments: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                for name in arguments:
                    if name not in self.parameters["properties"]:
                        raise unknown("argument", name, self.parameters["properties"])
                self.fn_metadata.validate_arguments(arguments)
                return await super().run(arguments, *args, **kwargs)
            except AttuneError as error:
                raise ToolError(str(error)) from None
            except ValidationError as error:
                raise ToolError(_mistake(self.name, error)) from None
            except UnexpectedToolError as error:
                # The SDK replaces the sentence of every exception that it does not know.
                if isinstance(error.__cause__, AttuneError):
                    raise ToolError(str(error.__cause__)) from None
                raise

    return [Checked.from_function(_answering(t), structured_output=False) for t in tools.all()]


def _mistake(tool: str, error: ValidationError) -> str:
    """Return the sentence on the first invalid argument."""
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"{tool} needs the argument {name}."
    return f"The argument {name} of {tool} is invalid: {first['msg']}."


def _answering(tool: Tool) -> Callable[..., Coroutine[Any, Any, str]]:
    """Wrap a tool: return its result as short JSON."""

    @functools.wraps(tool)
    async def answer(*args: Any, **kwargs: Any) -> str:
        return json.dumps(shortened(await tool(*args, **kwargs)), ensure_ascii=False)

    answer.__annotations__ = {**tool.__annotations__, "return": "str"}
    return answer
