"""Write `.ci/versions.txt`: names and versions installed here, and nothing of where from."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

NOT_LOCKED = {"attune", "pip", "wheel"}
HEAD = "# With these the whole test run passed; renewed by `poe lock`, taken by .ci/run."

versions = {
    dist.metadata["Name"]: dist.version.partition("+")[0]  # 2.13.0+cpu is a build of 2.13.0
    for dist in distributions()
    if dist.metadata["Name"].lower() not in NOT_LOCKED
}
lines = [f"{name}=={versions[name]}" for name in sorted(versions, key=str.lower)]
Path(__file__).with_name("versions.txt").write_text("\n".join([HEAD, *lines]) + "\n")
