"""The list of variants, and the values of their tunables.

Variants are the ladder's, then own kernels: those of `ATTUNE_KERNELS`, then added ones
(`engine.own_kernels.registry`). Given values take precedence over tuned configs (one JSON file),
and these over defaults.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar, get_args

from engine.attention.evaluation import Origin
from engine.attention.plan import capability_reason, takes
from engine.attention.problem import SHORT_DTYPES, Problem
from engine.base import files
from engine.base.errors import (
    InvalidKernel,
    InvalidProblem,
    InvalidStore,
    SnapshotError,
    StoreError,
    UnknownName,
    unknown,
)
from engine.base.files import data_folder
from engine.base.schema import Integer, Microseconds, Stored, decode, encode
from engine.base.units import format_us
from engine.devices.spec import DeviceSpec
from kernels.ladder import LADDER, KernelFile
from kernels.source_text import has_block, read_text, sidecar_of
from kernels.toml_block import KernelDescriptionError
from kernels.variant import AUTO, Config, Dtype, ProblemLike, Variant

VARIABLE: Final = "ATTUNE_KERNELS"
_MAX_BYTES: Final = 1 << 20


def added_kernels_path() -> Path:
    """Return the file that lists the added kernels."""
    return data_folder() / "kernels.json"


def added_kernels() -> list[Path]:
    """Return the added kernels' files; empty if the list is missing or damaged."""
    try:
        listed = json.loads(files.read(added_kernels_path(), _MAX_BYTES))
        return [Path(text) for text in listed["kernels"] if isinstance(text, str)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _places() -> Iterator[Path]:
    for text in os.environ.get(VARIABLE, "").split(os.pathsep):
        if text.strip():
            yield Path(text.strip()).expanduser().absolute()
    yield from added_kernels()


class OwnKernels:
    """The variants in files and folders named by the user; changes on disk are picked up at once.

    In a folder, `.cu` files with a description count. Of two files with the same name, the first is
    used and the other reported as a mistake.

    Args:
        places: returns the current files and folders, in order.
        taken: names that an own kernel must not have.
    """

    def __init__(
        self, places: Callable[[], Iterable[Path]], taken: Callable[[], Collection[str]]
    ) -> None:
        self._places = places
        self._taken = taken
        self._files: dict[str, KernelFile] = {}  # by id
        self._clashes: dict[Path, str] = {}  # and the error sentence
        self._looked_at: tuple[Path, ...] = ()
        self._lock = threading.Lock()

    def variants(self) -> tuple[Variant, ...]:
        """Return all current variants."""
        return tuple(f.variant for f in self._read() if f.variant is not None)

    @property
    def errors(self) -> tuple[KernelDescriptionError, ...]:
        """Return the current mistakes, at most one for each file."""
        mistakes = [f.error for f in self._read() if f.error is not None]
        mistakes += [KernelDescriptionError(path, 1, why) for path, why in self._clashes.items()]
        return tuple(mistakes)

    def find(self, name: str) -> KernelFile | None:
        """Return the file of the own kernel with this id; None if there is none."""
        self._read()
        return self._files.get(name)

    def seen(self, name: str) -> KernelFile | None:
        """Return `find` without reading other files; None unless an earlier call found it in the
        same places."""
        with self._lock:
            known = self._files.get(name)
            if known is None or tuple(self._places()) != self._looked_at:
                return None
            return known if known.refresh() else None

    def _read(self) -> list[KernelFile]:
        with self._lock:
            files: dict[str, KernelFile] = {}
            known = {file.path: file for file in self._files.values()}
            self._clashes = {}
            taken = self._taken()
            self._looked_at = tuple(self._places())
            for path in dict.fromkeys(self._paths()):
                file = known.get(path) or KernelFile(path, is_own=True)
                if not file.refresh():
                    continue
                if path.stem in taken:
                    self._clashes[path] = (
                        f"{path.stem} is a variant of the ladder: rename the file."
                    )
                elif path.stem in files:
                    other = files[path.stem].path
                    self._clashes[path] = f"{path.stem} is {other} already: rename one of the two."
                else:
                    files[path.stem] = file
            self._files = files
            return list(files.values())

    def _paths(self) -> Iterator[Path]:
        for place in self._looked_at:
            if place.is_dir():
                yield from (p for p in sorted(place.glob("*.cu")) if is_described(p))
            elif place.suffix == ".cu":
                yield place


def has_description(source: Path) -> bool:
    """True if a `.cu` file has a description; False if it cannot be read."""
    try:
        return has_block(read_text(source))
    except KernelDescriptionError:
        return False


def is_described(source: Path) -> bool:
    """True if there is a description in a `.cu` file or beside it."""
    return sidecar_of(source).is_file() or has_description(source)


OWN: Final = OwnKernels(_places, LADDER.names)


def all_variants() -> tuple[Variant, ...]:
    """Return the ladder of both directions, then own kernels."""
    return (*LADDER.every(), *OWN.variants())


def variants_for(problem: ProblemLike) -> tuple[Variant, ...]:
    """Return the ladder and own kernels of a problem's direction."""
    wanted = "backward" in problem.features
    return tuple(v for v in all_variants() if v.is_backward == wanted)


def find_variant(name: str) -> Variant:
    """Return the variant of the ladder or own kernel with this id (`v05`) or name.

    Raises:
        UnknownName: there is none; the nearest names are in the text.
        InvalidKernel: there is a mistake in its description.
    """
    file = LADDER.find(name) or OWN.seen(name) or OWN.find(name)
    if file is None and name == AUTO:
        raise UnknownName(
            f"{AUTO} stands for the variant that is chosen for a problem on a GPU: name one here.",
            code="auto_is_no_variant",
        )
    if file is None:
        raise unknown("variant", name, (v.id for v in all_variants()))
    if file.error is not None or file.variant is None:
        raise InvalidKernel(str(file.error), code=file.error.code if file.error is not None else "")
    return file.variant


def usual_dtype(variants: Iterable[str | Variant]) -> Dtype:
    """Return the default dtype of a problem: FP16 if all variants support it, else their first
    common dtype."""
    taken = [variant.dtypes for variant in _known(variants)]
    common = [d for d in (taken[0] if taken else ()) if all(d in others for others in taken)]
    return common[0] if common and "float16" not in common else "float16"


def usual_causal(variants: Iterable[str | Variant]) -> bool:
    """Return the default mask of a problem: causal only if the variants support no other."""
    known = _known(variants)
    return bool(known) and all(False not in variant.causal for variant in known)


def _known(variants: Iterable[str | Variant]) -> list[Variant]:
    """Return the named variants; empty if `auto` is among them. Unknown names are left out,
    because looking up the variant reports them."""
    known: list[Variant] = []
    for variant in variants:
        if variant == AUTO:
            return []
        with contextlib.suppress(UnknownName, InvalidKernel):
            known.append(find_variant(variant) if isinstance(variant, str) else variant)
    return known


def usual_head_dim(variant: Variant | None) -> int:
    """Return the default D of a problem: 64 if the variant supports it, else the variant's
    first."""
    return 64 if variant is None or 64 in variant.head_dims else variant.head_dims[0]


def variant_from(source: Path, name: str) -> Variant:
    """Return the variant that a `.cu` file describes, launched from that file.

    Sources of older snapshots have no description block: they take that of variant `name`.

    Raises:
        UnknownName: as `find_variant`, for a source without a block.
        InvalidKernel: the file cannot be read, or there is a mistake in its description.
    """
    from kernels.description import parse_variant
    from kernels.source_text import has_block, read_text
    from kernels.toml_block import KernelDescriptionError

    try:
        text = read_text(source)
        if has_block(text):
            return parse_variant(text, source)
    except KernelDescriptionError as mistake:
        raise InvalidKernel(str(mistake), code=mistake.code) from None
    return replace(find_variant(name), source=source)


# Tuned configs of variants for a GPU and a class of problems, stored in one JSON file.
#
# Problems of a class behave alike: same head_dim, mask and dtype, and sequence length and heads
# within a factor of two. A config found for one of them serves for all.

VERSION = 1
_MAX_FILE_BYTES = 16 << 20
_Key: TypeAlias = tuple[str, str, str]  # GPU, variant, class
_TRUST: tuple[Origin, ...] = get_args(Origin)[::-1]  # ascending


@dataclass(frozen=True, slots=True)
class TunedConfig(Stored):
    """A tuned config, its problem, and how it was found."""

    gpu: str
    variant: str
    problem_class: str
    config: Mapping[str, Integer]
    problem: str  # label of the tuned problem
    median_us: Microseconds
    origin: Origin
    when: str  # UTC, ISO 8601
    strategy: str
    evaluations: int  # number of evaluations in the search

    def describe(self) -> str:
        """Return `B1 H8 S128 D64 fp16 (12.3 µs measured)`."""
        return f"{self.problem} ({format_us(self.median_us)} {self.origin})"

    def values(self) -> str:
        """`block_n=64, num_splits=4`."""
        return ", ".join(f"{k}={v}" for k, v in self.config.items()) or "no tunables"

    def outranks(self, other: TunedConfig) -> bool:
        """True if `other` must not replace this entry: a prediction never replaces a
        measurement."""
        return _TRUST.index(self.origin) > _TRUST.index(other.origin)


def problem_class(problem: Problem) -> str:
    """Return a class such as `D64 fp16 causal S129-256 BH5-8`, with the powers of two between
    which S and B·H (and KV, if it differs from S) lie. `BH17-32 G4`: 4 query heads share a K/V
    head."""
    dtype = SHORT_DTYPES[problem.dtype]
    mask = "".join(f" {word}" for word in problem.feature_words())
    heads = _octave(problem.batch * problem.num_heads)
    keys = "" if problem.seqlen_kv is None else f" KV{_octave(problem.seqlen_kv)}"
    group = "" if problem.head_group == 1 else f" G{problem.head_group}"
    return f"D{problem.head_dim} {dtype}{mask} S{_octave(problem.seqlen)}{keys} BH{heads}{group}"


def _octave(size: int) -> str:
    top = 1 << (size - 1).bit_length()
    low = top // 2 + 1
    return str(top) if low >= top else f"{low}-{top}"


def tuned_path() -> Path:
    """Return `ATTUNE_TUNED` if set, else `tuned.json` in the user's data folder."""
    if chosen := os.environ.get("ATTUNE_TUNED"):
        return Path(chosen).expanduser()
    return data_folder() / "tuned.json"


def load_tuned(path: Path | None = None) -> list[TunedConfig]:
    """Return every entry; empty if there is no file.

    Raises:
        InvalidStore: the file cannot be read or has another format.
    """
    path = path or tuned_path()
    try:
        text = files.read(path, _MAX_FILE_BYTES + 1)
        if len(text) > _MAX_FILE_BYTES:
            raise ValueError("too large")
        data = json.loads(text)
        if data["version"] != VERSION:
            raise ValueError("unknown version")
        return [decode(TunedConfig, entry) for entry in data["tuned"]]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InvalidStore(
            f"The tuned configs in {path} cannot be read ({error.strerror}): fix the file's "
            "permissions or set ATTUNE_TUNED to another file.",
            code="tuned_file_unreadable",
        ) from error
    except (KeyError, TypeError, ValueError, RecursionError, SnapshotError) as error:
        raise InvalidStore(
            f"{path} does not hold tuned configs that this version can read: move it away or set "
            "ATTUNE_TUNED to another file.",
            code="tuned_file_foreign",
        ) from error


def find_tuned(
    gpu: str, variant: Variant, problem: Problem, path: Path | None = None
) -> TunedConfig | None:
    """Return the entry for this GPU, variant and problem's class.

    None if there is none, or the present variant does not support its config.

    Raises:
        InvalidStore: as `load_tuned`.
    """
    wanted = (gpu, variant.id, problem_class(problem))
    for entry in load_tuned(path):
        if _key(entry) == wanted and variant.unsupported(problem, entry.config) is None:
            return entry
    return None


def save_tuned(entry: TunedConfig, path: Path | None = None) -> bool:
    """Save an entry in place of the one with the same GPU, variant and class.

    Return False, without changes, if the entry is a prediction and the saved one is measured.

    Raises:
        StoreError: the file cannot be read or written.
    """
    with _changing(path) as entries:
        old = entries.get(_key(entry))
        if old is not None and old.outranks(entry):
            return False
        entries[_key(entry)] = entry
    return True


def delete_tuned(entry: TunedConfig, path: Path | None = None) -> bool:
    """Delete the entry of this GPU, variant and class; False if there was none.

    Raises:
        StoreError: the file cannot be read or written.
    """
    with _changing(path) as entries:
        return entries.pop(_key(entry), None) is not None


@contextlib.contextmanager
def _changing(path: Path | None) -> Iterator[dict[_Key, TunedConfig]]:
    """Yield all entries by key; write the dictionary back as the caller leaves it."""
    path = path or tuned_path()
    remedy = "free some disk space or set ATTUNE_TUNED to a file that can be written"
    with files.explain_os_error(f"The tuned configs cannot be saved in {path}", remedy):
        files.make_folder(path.parent)
        with files.lock(path.with_name(f".{path.name}.lock")):
            before = {_key(e): e for e in load_tuned(path)}
            entries = dict(before)
            yield entries
            if entries != before:
                listed = [encode(entries[key]) for key in sorted(entries)]
                text = json.dumps({"version": VERSION, "tuned": listed}, indent=2) + "\n"
                files.write(path, text.encode())


def _key(entry: TunedConfig) -> _Key:
    return (entry.gpu, entry.variant, entry.problem_class)


# "fitting": nobody gave the value, and the default does not fit the problem or the GPU.
ConfigOrigin: TypeAlias = Literal["given", "auto", "tuned", "default", "fitting"]

# Origins of values that nobody gave, the most telling first.
_RESTS: tuple[ConfigOrigin, ...] = ("auto", "tuned", "fitting", "default")


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """A complete config, with the origin of each value."""

    values: dict[str, int]
    origins: Mapping[str, ConfigOrigin] = field(default_factory=dict)  # by tunable
    tuned: TunedConfig | None = None  # the entry of tuned values
    error: str = ""  # sentence why the tuned configs could not be read

    def describe(self) -> str:
        """Return `default`, `tuned for B1 H8 S128 D64 fp16 (12.3 µs measured)`, `num_splits
        given, …`."""
        if not self.origins:
            return "no tunables"
        origins = set(self.origins.values())
        rest: str = next(o for o in (*_RESTS, "given") if o in origins)
        if self.tuned is not None:
            rest = f"tuned for {self.tuned.describe()}"
        elif rest == "fitting":
            rest = f"default except {self._fitting()}, because the default does not fit"
        if "given" not in origins:
            return rest
        if len(origins) == 1:
            return "given"
        given = ", ".join(name for name, origin in self.origins.items() if origin == "given")
        return f"{given} given, the rest {rest}"

    def _fitting(self) -> str:
        changed = [name for name, origin in self.origins.items() if origin == "fitting"]
        return ", ".join(f"{name}={self.values[name]}" for name in changed)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences on values that differ from what the user may expect."""
        if not (fitting := self._fitting()):
            return (self.error,) if self.error else ()
        note = f"The default config does not fit here, so it is changed to {fitting}."
        return (note, self.error) if self.error else (note,)


def invalid_values_error(why: str) -> InvalidProblem:
    """Return the error for a value that a variant does not have; `why` is from
    `Variant.invalid_values`."""
    return InvalidProblem(why, code="tunable_not_offered")


def check_given(variant: Variant, given: Mapping[str, int]) -> None:
    """Raise InvalidProblem for a tunable that the variant lacks, or a value that it does not
    offer."""
    if (why := variant.invalid_values(given)) is not None:
        raise invalid_values_error(why)


def default_config(
    variant: Variant, given: Mapping[str, int], device: DeviceSpec | None = None
) -> dict[str, int]:
    """Return the variant's defaults on a GPU, overridden by given values, without tuned configs."""
    return {**variant.default_config(device.num_sms if device is not None else None), **given}


def fitting_config(
    variant: Variant, given: Mapping[str, int], problem: Problem, device: DeviceSpec | None
) -> dict[str, int]:
    """Return the config that is used where nobody gave a value.

    It is the GPU's default, overridden by the given values, if `engine.attention.plan.takes` it;
    else the config that is taken and differs in the fewest values that were not given, and in those
    the least; else the default, and evaluating it reports why it is not taken.
    """
    values = default_config(variant, given, device)
    if (
        takes(variant, problem, values, device)
        # No other config would be taken:
        or variant.unsupported_problem(problem) is not None
        or variant.invalid_values(given) is not None
        or (device is not None and capability_reason(variant, problem.dtype, device) is not None)
    ):
        return values
    num_sms = device.num_sms if device is not None else None
    others = {  # of two equal changes, that of the later tunable is made
        t.name: [v for v in t.values_on(num_sms) if v != values[t.name]]
        for t in reversed(variant.tunables)
        if t.name not in given
    }
    for number in range(1, len(others) + 1):
        changes = (
            dict(zip(names, chosen, strict=True))
            for names in itertools.combinations(others, number)
            for chosen in itertools.product(*(others[name] for name in names))
        )
        fitting = [c for c in changes if takes(variant, problem, values | c, device)]
        if fitting:
            return values | min(fitting, key=lambda change: _octaves(values, change))
    return values


def _octaves(values: Mapping[str, int], change: Mapping[str, int]) -> float:
    """Return by how many powers of two a change moves values."""
    return sum(abs(math.log2(max(n, 0.5) / max(values[name], 0.5))) for name, n in change.items())


def resolve_config(
    variant: Variant, given: Mapping[str, int], problem: Problem, device: DeviceSpec | None
) -> ResolvedConfig:
    """Return the config of an evaluation.

    A complete config is never changed. Missing values come from the tuned config for this GPU,
    variant and class of problems, if it fits with the given ones; else from `fitting_config`.
    Unknown names are kept, for `Variant.unsupported` to report.

    Args:
        device: None: not known, so tuned configs are not used.
    """
    defaults = default_config(variant, given, device)
    origins: dict[str, ConfigOrigin] = {n: "given" if n in given else "default" for n in defaults}
    if all(name in given for name in defaults):
        return ResolvedConfig(defaults, origins)
    error = ""
    if device is not None:
        try:
            tuned = find_tuned(device.name, variant, problem)
        except StoreError as unreadable:
            tuned, error = None, f"Defaults are used: {unreadable}"
        if tuned is not None:
            both = {**defaults, **tuned.config, **given}
            if takes(variant, problem, both, device):
                origins |= {name: "tuned" for name in tuned.config if name not in given}
                return ResolvedConfig(both, origins, tuned)
    values = fitting_config(variant, given, problem, device)
    origins |= {name: "fitting" for name in values if values[name] != defaults[name]}
    return ResolvedConfig(values, origins, error=error)


class Chosen(Protocol):
    """What `auto` chooses."""

    @property
    def variant(self) -> Variant: ...
    @property
    def config(self) -> dict[str, int]: ...
    @property
    def given(self) -> tuple[str, ...]: ...


ChosenT = TypeVar("ChosenT", bound=Chosen)


@dataclass(frozen=True, slots=True)
class Resolved(Generic[ChosenT]):
    """A variant with a complete config, as named or as `auto` chooses them."""

    variant: Variant
    config: ResolvedConfig
    choice: ChosenT | None = None  # if `auto` was asked for


def resolve_kernel(
    of: str | Variant,
    given: Config,
    problem: Problem,
    device: DeviceSpec | None,
    auto: Callable[[Problem, DeviceSpec | None, Config], ChosenT],
) -> Resolved[ChosenT]:
    """Return the variant and the config that a name and given tunables stand for.

    Args:
        of: a variant or its name, or `auto`.
        given: tunables given by the user; the others are tuned or default (`resolve_config`).
        auto: `engine.choose.auto.choose` with a history, which decides if `of` is `auto`.

    Raises:
        UnknownName: no such variant.
        InvalidKernel: there is a mistake in the kernel's description.
        InvalidProblem: as `auto`.
    """
    if of == AUTO:
        choice = auto(problem, device, given)
        origins: dict[str, ConfigOrigin] = {
            name: "given" if name in choice.given else "auto" for name in choice.config
        }
        return Resolved(choice.variant, ResolvedConfig(choice.config, origins), choice)
    variant = find_variant(of) if isinstance(of, str) else of
    return Resolved(variant, resolve_config(variant, given, problem, device))
