"""Made-up git repositories with kernels of the ladder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from kernels.variant import KERNELS_DIR

ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.com",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
}
ONE_PROBLEM = 'gpus = ["L4"]\narchs = ["sm_89"]\nproblems = ["B1 H2 S128 D64"]\n'


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def repository(folder: Path, *variants: str, settings: str = ONE_PROBLEM) -> Path:
    """Return a repository whose first commit has these kernels of the ladder and all headers."""
    inside = folder / "kernels"
    inside.mkdir(parents=True)
    for source in KERNELS_DIR.iterdir():
        if source.suffix == ".cuh" or source.stem[:3] in variants:
            shutil.copy(source, inside)
    if settings:
        (folder / "attune-gate.toml").write_text(settings)
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "Kernels")
    return folder


def commit(folder: Path, subject: str) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", subject)
    return git(folder, "rev-parse", "HEAD").strip()


def kernel_file(folder: Path, variant: str) -> Path:
    return next((folder / "kernels").glob(f"{variant}*.cu"))


def edit(path: Path, *replacements: tuple[str, str]) -> None:
    """Replace all occurrences of texts, each of which must be there."""
    text = path.read_text()
    for old, new in replacements:
        assert old in text, f"{path.name} does not say {old!r}"
        text = text.replace(old, new)
    path.write_text(text)
