"""The command line. It can do everything that the app can.

Output, including errors, is tables by default and JSON with `--json`: `{"error": {"kind": …}}`.
Exit
codes: 0 passed, 1 not passed (incorrect, error), 2 invalid input (`engine.base.errors.BadInput`),
files included.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.base.errors import AttuneError, BadInput, InvalidKernel
from engine.base.files import DISK_ERRORS
from engine.base.schema import file_label
from engine.cli.command_line import options_of, parser
from engine.cli.output import print_json, shown_output


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without a command, list the commands."""
    with shown_output():
        return _run(argv)


def _run(argv: Sequence[str] | None) -> int:
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        args = parser(only=given[0] if given else "").parse_args(given or ["--help"])
        _check_cache()
        code: int = args.run(options_of(args))
        sys.stdout.flush()  # a write error must be raised here
    except AttuneError as error:
        return _report(error, given, 2 if isinstance(error, BadInput) else 1)
    except KeyboardInterrupt:
        print("Cancelled.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `… | head` has closed the pipe
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            sentence = "… is too long for a file name: give a shorter one."
            return _report(BadInput(f"{file_label(str(error.filename))}{sentence}"), given, 2)
        if error.errno not in DISK_ERRORS or error.filename is not None:
            raise
        print(f"error: The output cannot be written: {error.strerror}.", file=sys.stderr)
        # The interpreter's own flush at exit would fail again, with a traceback.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        return 1
    return code


def _report(error: AttuneError, given: Sequence[str], code: int) -> int:
    """Print an error, also as JSON if requested; return the exit code."""
    print(f"error: {error}", file=sys.stderr)
    block = error.block if isinstance(error, InvalidKernel) else ""
    if "--json" in given:
        described = {"kind": type(error).__name__, "message": str(error), "exit_code": code}
        more = {"code": error.code, "block": block}
        print_json({"error": described | {name: value for name, value in more.items() if value}})
    elif block:
        print(block)
    return code


def _check_cache() -> None:
    from engine.base.files import check_root  # imported late, because `--help` does not need it

    if warning := check_root():
        print(f"Warning: {warning}", file=sys.stderr)
