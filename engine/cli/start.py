"""`app`: the dashboard, in the place of this process."""

from __future__ import annotations

import argparse
import os
import sys

from engine.base.errors import ToolMissing
from engine.base.files import PACKAGES


def run_app(args: argparse.Namespace) -> int:
    page = PACKAGES / "app" / "main.py"
    if not page.is_file():
        raise ToolMissing(
            f"The dashboard is not installed, {page} is missing: install Attune anew."
        )
    own = ["--", "--token"] if args.token else []
    # -P: no `app` or `engine` of the folder that it is started in stands before Attune's.
    command = [sys.executable, "-P", "-m", "streamlit", "run", str(page), *args.passed_on, *own]
    sys.stdout.flush()
    os.execv(sys.executable, command)
