"""`mcp`: the commands as tools of the Model Context Protocol, over standard input and output."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.base.errors import InvalidProblem
from engine.mcp_server import MOST_SECONDS, Rights, serve


def run_mcp(args: argparse.Namespace) -> int:
    if args.seconds > MOST_SECONDS:
        raise InvalidProblem(f"--seconds is at most {MOST_SECONDS:.0f}, not {args.seconds:g}.")
    serve(Rights(Path.cwd().resolve(), args.write, args.run_kernels, args.seconds))
    return 0
