"""Commands that start another program: `app`, `mcp` and `softgpu`.

`app` is the dashboard. `mcp` offers the commands as tools of the Model Context Protocol over
standard input and output. `softgpu -- COMMAND` starts a command with a GPU in software in place of
NVIDIA's driver.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from engine.base.errors import InvalidProblem, ToolMissing
from engine.base.files import PACKAGES
from engine.cli.mcp_server import MAX_SECONDS, Rights, serve
from engine.software_gpu.process_environment import software_environment


@dataclass(frozen=True)
class AppOptions:
    """The options of `app`."""

    token: bool
    passed_on: list[str]


def run_app(args: AppOptions) -> int:
    page = PACKAGES / "app" / "main.py"
    if not page.is_file():
        raise ToolMissing(f"The dashboard is not installed, {page} is missing: reinstall Attune.")
    own = ["--", "--token"] if args.token else []
    # -P: an `app` or `engine` in the current folder must not hide Attune's.
    command = [sys.executable, "-P", "-m", "streamlit", "run", str(page), *args.passed_on, *own]
    sys.stdout.flush()
    os.execv(sys.executable, command)


@dataclass(frozen=True)
class McpOptions:
    """The options of `mcp`."""

    write: bool
    run_kernels: bool
    seconds: float


def run_mcp(args: McpOptions) -> int:
    if args.seconds > MAX_SECONDS:
        raise InvalidProblem(f"--seconds is at most {MAX_SECONDS:.0f}, not {args.seconds:g}.")
    serve(Rights(Path.cwd().resolve(), args.write, args.run_kernels, args.seconds))
    return 0


@dataclass(frozen=True)
class SoftgpuOptions:
    """The options of `softgpu`."""

    gpus: str
    without_cupy: bool
    launch_seconds: float | None
    words: list[str]


def run_softgpu(args: SoftgpuOptions) -> int:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise InvalidProblem("softgpu runs a command: attune softgpu -- python my_script.py.")
    environment = software_environment(
        os.environ,
        args.gpus,
        with_cupy=not args.without_cupy,
        launch_s=args.launch_seconds,
    )
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        raise ToolMissing(f"{words[0]} cannot be started: {error.strerror}.") from error
