"""The command line. The app has no power that it lacks.

Human tables by default, `--json` for machines. Exit codes: 0 passed, 1 not passed (incorrect,
error), 2 bad usage.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.cli import (
    auto,
    bench,
    compare,
    devices,
    evaluate,
    occupancy,
    predictions,
    profile,
    recommend,
    report,
    rerun,
    roofline,
    sass,
    selfcheck,
    sessions,
    sweep,
    tuned,
    variants,
)
from engine.errors import AttuneError, InvalidKernel, InvalidProblem, UnknownName

_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_COMMANDS = (
    selfcheck,
    variants,
    auto,
    evaluate,
    occupancy,
    devices,
    recommend,
    sweep,
    tuned,
    bench,
    sessions,
    report,
    rerun,
    roofline,
    sass,
    compare,
    predictions,
    profile,
)


def parser() -> argparse.ArgumentParser:
    """The whole command line's parser; each command module adds its own part."""
    root = argparse.ArgumentParser(
        prog="python -m engine",
        description="Attune: is the kernel right, what does it occupy, how fast is it.",
        allow_abbrev=False,
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="command")
    for module in _COMMANDS:
        module.add_parser(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        args = parser().parse_args(argv)
        code: int = args.run(args)
        sys.stdout.flush()  # what does not fit must fail here
    except (InvalidProblem, UnknownName) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except AttuneError as error:
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, InvalidKernel) and error.block:
            print(error.block)
        return 1
    except KeyboardInterrupt:
        print("Cancelled.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `… | head`: the reader has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
            raise
        print(f"error: The output cannot be written: {error.strerror}.", file=sys.stderr)
        # The interpreter's own flush at exit would fail again, with a traceback.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        return 1
    return code
