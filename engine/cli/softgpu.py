"""`softgpu -- COMMAND`: a command that finds a GPU in software where NVIDIA's driver would be."""

from __future__ import annotations

import argparse
import os

from engine.base.errors import InvalidProblem, ToolMissing
from engine.software_gpu.environment import software_environment


def run_softgpu(args: argparse.Namespace) -> int:
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise InvalidProblem("softgpu runs a command: attune softgpu -- python my_script.py.")
    environment = software_environment(os.environ, args.gpus, with_cupy=not args.without_cupy)
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        raise ToolMissing(f"{words[0]} cannot be started: {error.strerror}.") from error
