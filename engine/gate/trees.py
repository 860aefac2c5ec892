"""The two sides of a comparison as folders, and the kernels in each with their files.

Files of a revision that kernels may use are written to a temporary folder. Nothing of either side
is executed, including git's hooks and filters.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from engine.attention.config import is_described
from engine.base.errors import BadInput, CompileError, ToolMissing
from engine.cuda_source.sources import OutsideFolder, files_inside, include_from
from kernels.description import parse_variant
from kernels.ladder import is_numbered
from kernels.source_text import read_sidecar, read_text
from kernels.toml_block import KernelDescriptionError
from kernels.variant import Variant

SETTINGS_NAME = "attune-gate.toml"
_HIDDEN_SETTINGS_NAME = f".{SETTINGS_NAME}"  # a hidden name, to keep the top level short
_SUFFIXES = (
    ".cu", ".cuh", ".h", ".hh", ".hpp", ".hxx", ".inl", ".inc", ".attune.toml", ".cubin"
)  # fmt: skip
_MAX_FILES = 20_000
_MAX_BYTES = 256 << 20  # of all files of a revision
_GIT_SECONDS = 60


class NoTree(BadInput):
    """The name is not a revision, folder or file."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One side."""

    label: str  # the given name, with the commit: `main (1a2b3c4)`
    root: Path  # a folder
    names: tuple[str, ...]  # of relevant files, relative to the root, with `/`
    commit: str = ""  # full hash; empty if it is not a revision
    # Submodules that are not checked out (`lib (commit …)`), by folders and links that lead into
    # them.
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the names of the `.cu` files."""
        return tuple(name for name in self.names if name.endswith(".cu"))


@contextmanager
def open_trees(base: str, head: str | None, here: Path) -> Iterator[tuple[Tree, Tree]]:
    """Open both sides for the duration of the context.

    Args:
        base, head: a git revision, a folder or a `.cu` file; without `head` the working tree. A
            base `main...` is the commit at which `head` left `main`.
        here: base folder of revisions and relative paths.

    Raises:
        NoTree: one of them is none of these.
        ToolMissing: git is not installed.
    """
    base = _common_ancestor(base, head, here)
    with TemporaryDirectory(prefix="attune-gate-") as made:
        first = open_tree(base, here, Path(made, "base"))
        if head is not None:
            yield first, open_tree(head, here, Path(made, "head"))
            return
        if not first.commit and Path(here, base).is_file():
            raise NoTree(
                f"{base} is a file: name the other one too, as in `gate {base} NEW.cu`.",
                code="one_file_of_two",
            )
        yield first, working_tree(here) if first.commit else _folder(here, "this folder")


def open_tree(name: str, here: Path, into: Path) -> Tree:
    """Open one side. Raises as `open_trees`.

    Args:
        into: a folder, not existing yet, for files of a revision.
    """
    path = here / name
    looks_like_a_path = name.startswith((".", "/", "~")) or name.endswith(".cu")
    top = repository(here)
    if not looks_like_a_path and top is not None and (commit := _commit(top, name)):
        return _revision(top, name, commit, into)
    path = path.expanduser()
    if path.is_dir():
        return _folder(path, name)
    if path.is_file() and path.suffix == ".cu":
        return Tree(name, path.parent.absolute(), (path.name,))
    if top is None and not looks_like_a_path:
        raise NoTree(
            f"{here} is not a git repository, and there is no folder {name}: run this inside one, "
            "or "
            "name two folders or two .cu files.",
            code="no_repository_nor_folder",
        )
    what = "no .cu file" if path.is_file() else "no git revision here, no folder and no file"
    remedy = "name a revision (HEAD~1, origin/main), a folder or a .cu"
    if top is not None and _git(top, "rev-parse", "--is-shallow-repository").strip() == b"true":
        remedy = "this clone is shallow, so git fetch --deepen=50 may bring it; else " + remedy
    raise NoTree(f"{name} is {what}: {remedy}.", code="no_revision")


def _common_ancestor(base: str, head: str | None, here: Path) -> str:
    """Return the commit that `A...` means; other names unchanged. Raises NoTree."""
    top = repository(here) if base.endswith("...") else None
    if top is None:
        return base
    sides = [base.removesuffix("...") or "HEAD", head or "HEAD"]
    commits = [_commit(top, side) for side in sides]
    try:
        return _git(top, "merge-base", *commits).decode().strip()[:12] if all(commits) else base
    except _GitFailed:
        raise NoTree(
            f"{sides[0]} and {sides[1]} have no common commit in this clone: name the revision "
            "itself."
        ) from None


def working_tree(here: Path) -> Tree:
    """Return the working tree: files on disk, without those that git ignores."""
    top = repository(here)
    if top is None:
        raise NoTree(f"{here} is not a git repository: run this inside one.", code="no_repository")
    listed = _git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = sorted({n for n in _names(listed) if _counts(n) and _is_plain(top, n)})
    staged = [record.partition("\t") for record in _names(_git(top, "ls-files", "-z", "--stage"))]
    absent = {
        path: _named(path, head.split()[1])
        for head, _, path in staged
        if head.startswith("160000") and not (top / path / ".git").exists()
    }
    links = {
        p: str((top / p).readlink()) for _, _, p in staged if absent and (top / p).is_symlink()
    }
    return Tree("the working tree", top, tuple(names), absent=absent | _leading(links, absent, top))


def repository(here: Path) -> Path | None:
    """Return the top folder of the git repository that contains `here`."""
    try:
        return Path(os.fsdecode(_git(here, "rev-parse", "--show-toplevel")).rstrip("\n"))
    except _GitFailed as error:
        if "not a git repository" in str(error):
            return None
        raise


def commits_of(top: Path, paths: Sequence[str], last: int) -> list[tuple[str, str, str]]:
    """Return (hash, day, subject) of the last commits that touch these paths, newest first."""
    out = _git(
        top, "log", f"-{last}", "--format=%H%x1f%cs%x1f%s%x1e", "--end-of-options", "HEAD", "--",
        *paths,
    )  # fmt: skip
    records = (r.strip() for r in out.decode("utf-8", errors="replace").split("\x1e"))
    return [(h, day, subject) for h, day, subject in (r.split("\x1f") for r in records if r)]


def last_commit(folder: Path) -> str:
    """Return the hash of the current commit of the folder's repository.

    Raises:
        NoTree: the folder is in no repository, or in one without a commit.
    """
    top = repository(folder)
    commit = _commit(top, "HEAD") if top is not None else ""
    if not commit:
        raise NoTree(
            f"{folder} is not in a git repository with commits, which a history needs.",
            code="no_history",
        )
    return commit


def source_diff(top: Path, commit: str, paths: Sequence[str]) -> str:
    """Return git's diff of a commit in these paths."""
    shown = _git(top, "show", "--format=", "--no-ext-diff", "--no-textconv", commit, "--", *paths)
    return shown.decode("utf-8", errors="replace")


def commit_file(top: Path, name: str, message: str) -> str:
    """Commit only this file, whatever else is staged; return the hash. Raises NoTree if git
    fails."""
    _git(top, "add", "--", name)
    _git(top, "commit", "--quiet", "--only", "--file=-", "--", name, given=message.encode())
    return _git(top, "rev-parse", "HEAD").decode().strip()


class _GitFailed(NoTree):
    """git failed; the text is the first line of its error."""


def _git(folder: Path, *arguments: str, given: bytes | None = None) -> bytes:
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments],
            input=given,
            capture_output=True,
            env=os.environ | {"LC_ALL": "C"},
            timeout=_GIT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise ToolMissing("git is not installed, and is needed to read revisions.") from None
    except subprocess.TimeoutExpired:
        raise NoTree(f"git {arguments[0]} took longer than {_GIT_SECONDS} s.") from None
    if done.returncode:
        message = done.stderr.decode("utf-8", errors="replace").strip().partition("\n")[0]
        raise _GitFailed(f"git {arguments[0]} failed in {folder}: {message or 'no message'}.")
    return done.stdout


def _commit(top: Path, name: str) -> str:
    """Return the full hash; empty if it is not a revision."""
    try:
        out = _git(
            top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
        )
    except _GitFailed:
        return ""
    return out.decode().strip()


def _revision(top: Path, name: str, commit: str, into: Path) -> Tree:
    into.mkdir(parents=True)
    absent: dict[str, str] = {}
    names, links = _extract(top, name, commit, into, absent)
    label = name if commit.startswith(name) else f"{name} ({commit[:7]})"
    _follow(links, into)
    absent |= _leading(links, absent, into)
    return Tree(label, into, tuple(sorted(names)), commit, absent)


def _extract(
    top: Path, name: str, commit: str, into: Path, absent: dict[str, str], prefix: str = ""
) -> tuple[list[str], dict[str, str]]:
    """Write the files of a commit and of its submodules; return (names, links by name) without the
    submodules'.

    Submodules whose commit is missing are added to `absent`.
    """
    listed = _git(top, "ls-tree", "-r", "-z", "--long", "--full-tree", commit)
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    modules: dict[str, str] = {}
    total = 0
    for record in _names(listed):
        head, _, path = record.partition("\t")
        mode, _, blob, size = head.split()
        if not _is_inside(path):
            continue
        if mode == "160000":
            modules[path] = blob
        elif mode == "120000":
            links[path] = blob
        elif _counts(path):
            total += int(size)
            files[path] = blob
    if len(files) + len(links) > _MAX_FILES or total > _MAX_BYTES:
        raise NoTree(
            f"{name} has {len(files):,} CUDA files of {total >> 20:,} MiB; at most {_MAX_FILES:,} "
            f"and {_MAX_BYTES >> 20} MiB are read: name a folder instead."
        )
    for path, data in _contents(top, files).items():
        target = into / prefix / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    for path, module in modules.items():
        inner = top / path
        # Only its own repository, not one that contains it or that a link leads to.
        if inner.is_dir() and repository(inner) == inner and _commit(inner, module):
            _extract(inner, f"{name}:{path}", module, into, absent, f"{prefix}{path}/")
        else:
            absent[f"{prefix}{path}"] = _named(f"{prefix}{path}", module)
    targets = {path: os.fsdecode(data) for path, data in _contents(top, links).items()}
    return list(files), targets


def _named(module: str, commit: str) -> str:
    return f"{module} (commit {commit})"


def _leading(links: Mapping[str, str], absent: Mapping[str, str], root: Path) -> dict[str, str]:
    """Return {link: submodule} of links into submodules that are not checked out."""
    return {
        path: name
        for path, target in links.items()
        for folder, name in absent.items()
        if Path(os.path.normpath((root / path).parent / target)).is_relative_to(root / folder)
    }


def _contents(top: Path, blobs: dict[str, str]) -> dict[str, bytes]:
    asked = "".join(f"{blob}\n" for blob in blobs.values()).encode()
    data = _git(top, "cat-file", "--batch", given=asked) if blobs else b""
    position = 0
    contents = {}
    for path in blobs:
        end = data.index(b"\n", position)
        size = int(data[position:end].split()[2])
        contents[path] = data[end + 1 : end + 1 + size]
        position = end + size + 2
    return contents


def _follow(links: dict[str, str], into: Path) -> None:
    """Replace links within the tree by copies; leave out other links."""
    copied = 0
    for path, target in links.items():
        place = into / path
        source = Path(os.path.normpath(place.parent / target))
        if place.exists() or not source.is_relative_to(into) or source == into:
            continue
        inside = [source] if source.is_file() else [p for p in source.rglob("*") if p.is_file()]
        copied += len(inside)
        if copied > _MAX_FILES or place.is_relative_to(source):
            continue
        for file in inside:
            copy = place / file.relative_to(source) if file != source else place
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())


def _folder(path: Path, label: str) -> Tree:
    root = path.absolute()
    names = []
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        at = Path(folder).relative_to(root)
        names += [(at / name).as_posix() for name in files if _counts(name)]
        if len(names) > _MAX_FILES:
            raise NoTree(f"{label} has more than {_MAX_FILES:,} CUDA files: name a smaller folder.")
    return Tree(label, root, tuple(sorted(n for n in names if _is_plain(root, n))))


def _is_inside(name: str) -> bool:
    return not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts


def _counts(name: str) -> bool:
    return _is_inside(name) and (
        name.endswith(_SUFFIXES) or name in (SETTINGS_NAME, _HIDDEN_SETTINGS_NAME)
    )


def settings_of(root: Path) -> Path:
    """Return the path of a tree's settings, which may not exist."""
    hidden = root / _HIDDEN_SETTINGS_NAME
    plain = root / SETTINGS_NAME
    return hidden if hidden.is_file() and not plain.is_file() else plain


def _is_plain(root: Path, name: str) -> bool:
    path = root / name
    return path.is_file() and not path.is_symlink()


def _names(listed: bytes) -> list[str]:
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]


# The kernels of one side: files with a description, and the files that each uses.


@dataclass(frozen=True, slots=True)
class Found:
    """A kernel of one side.

    `digest` is a hash of its text, its description, its headers and its cubins.
    """

    id: str
    name: str  # of the file, relative to the tree's root
    path: Path
    digest: str
    files: tuple[str, ...] = ()  # the file and its headers, relative to the tree's root
    fault: str = ""  # why it cannot be read, in which case there is no variant
    unknown: str = ""  # missing parts, because of which there is no verdict
    variant: Variant | None = field(default=None, compare=False)


def find_kernels(tree: Tree, patterns: Sequence[str]) -> dict[str, Found]:
    """Return the kernels of a side by id, ordered by file name.

    Args:
        patterns: of names relative to the root (`kernels/*.cu`); empty: every file with a
            description.
    """
    found: dict[str, Found] = {}
    for name in tree.sources:
        path = tree.root / name
        if patterns and not any(fnmatch.fnmatchcase(name, p) for p in patterns):
            continue
        if not is_described(path):
            continue
        kernel = _read(tree, name, path)
        # Files with the same name have their paths as ids.
        found[name if kernel.id in found else kernel.id] = kernel
    return found


_ALIKE = 0.5  # minimum share of common lines of a renamed file, as in git


def pair_kernels(
    first: Mapping[str, Found], second: Mapping[str, Found]
) -> tuple[dict[str, Found], dict[str, str]]:
    """Return (earlier kernels by the id of their later version, old name by id).

    The counterpart of a kernel has the same file, else the same name elsewhere, else is the most
    similar removed one, so that renamed kernels are compared, too. Removed kernels keep their ids.
    """
    files = {found.name: found for found in first.values()}
    paired = {id_: files.pop(found.name) for id_, found in second.items() if found.name in files}
    for id_ in second.keys() - paired.keys():
        if (same := first.get(id_)) is not None and same.name in files:
            paired[id_] = files.pop(same.name)
    renamed: dict[str, str] = {}
    new = {id_: found for id_, found in second.items() if id_ not in paired}
    alike = sorted(
        (
            (_likeness(old, found), id_, name)
            for name, old in files.items()
            for id_, found in new.items()
        ),
        reverse=True,
    )
    for likeness, id_, name in alike:
        if likeness >= _ALIKE and name in files and id_ not in paired:
            paired[id_] = files.pop(name)
            renamed[id_] = name
    order = [id_ for id_ in second if id_ in paired]
    removed = {old.name if old.id in second else old.id: old for old in files.values()}
    return {id_: paired[id_] for id_ in order} | removed, renamed


def _likeness(one: Found, other: Found) -> float:
    """Return the share of lines that two files have in common."""
    if one.digest == other.digest:
        return 1.0
    lines = [
        Counter(line.strip() for line in found.path.read_bytes().splitlines() if line.strip())
        for found in (one, other)
    ]
    return 2 * (lines[0] & lines[1]).total() / max(1, lines[0].total() + lines[1].total())


def _read(tree: Tree, name: str, path: Path) -> Found:
    of_ladder = is_numbered(path.name)
    kernel_id = path.stem[:3] if of_ladder else path.stem
    digest, top = hashlib.sha256(path.read_bytes()), tree.root.resolve()
    try:
        text, sidecar = read_text(path), read_sidecar(path)
        variant = parse_variant(text, path, sidecar=sidecar, is_own=not of_ladder)
        digest.update((sidecar or "").encode())
        for place, module in tree.absent.items():
            if found := include_from(tree.root / place, path, variant.include_folders):
                digest.update(module.encode())
                unknown = (
                    f"{found[0]} includes {found[1]} of the submodule {module}, which is not here "
                    f"in {tree.label}: git submodule update --init brings it."
                )
                return Found(kernel_id, name, path, digest.hexdigest(), (name,), unknown=unknown)
        files = files_inside(tree.root, path, variant.include_folders)
        for header, text in sorted(files[file] for file in files if file != path):
            digest.update(f"\0{header}\0{text}".encode())
        for cubin in variant.cubins:
            if not cubin.resolve().is_relative_to(top):
                raise OutsideFolder(f"{path.name} names {cubin}, which lies outside of {top}.")
            digest.update(cubin.read_bytes())
    except OutsideFolder as error:
        why = f"{error} Kernels of {tree.label} include files of it alone."
        return Found(kernel_id, name, path, digest.hexdigest(), (name,), fault=why)
    except (KernelDescriptionError, CompileError) as error:
        return Found(kernel_id, name, path, digest.hexdigest(), (name,), fault=str(error))
    parts = (*files, *variant.cubins)
    names = tuple(sorted(p.resolve().relative_to(top).as_posix() for p in parts))
    return Found(kernel_id, name, path, digest.hexdigest(), names, variant=variant)
