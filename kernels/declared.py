"""Keys of a description without formulas: tunables, dtypes, masks, features, files.

Each function parses one key of a block and raises KernelDescriptionError with its line.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, get_args

from kernels.toml_block import Table, shown
from kernels.variant import Dtype, Feature, Lse, LseBase, LseLayout, Tunable

MIN_COMPUTE_CAPABILITY: Final = 7.5  # the lowest that CUDA 13 compiles for

_FP8 = re.compile(r"fp8|float8|e4m3|e5m2", re.IGNORECASE)


def tunable(group: Table, name: str) -> Tunable:
    table = group.table(name)
    table.allow("values", "default", "meaning", "per_sm")
    values = table.integers("values")
    default = table.get("default", int, "one of the values")
    if default not in values:
        table.error("default", f"{shown(default)} is not one of the values")
    per_sm = table.get("per_sm", int, "the CTAs on each SM, at least 1", 0)
    if "per_sm" in table.values and per_sm < 1:
        table.error("per_sm", f"it is the CTAs on each SM, at least 1, not {shown(per_sm)}")
    return Tunable(name, values, default, table.string("meaning"), per_sm)


def dtypes(block: Table, gets_dtype: bool) -> tuple[Dtype, ...]:
    known: tuple[Dtype, ...] = get_args(Dtype)
    names = f"a list of {', '.join(known[:-1])} and {known[-1]}"
    # Without the key: FP16 and BF16, or FP16 only if the kernel does not get the element type.
    default = [dtype for dtype in known if dtype != "float32"] if gets_dtype else ["float16"]
    values = block.items("dtypes", names, default)
    if any(isinstance(v, str) and _FP8.search(v) for v in values):
        block.error(
            "dtypes",
            "FP8 inputs are not supported, because a reference needs their scales: give "
            f"the kernel 16-bit tensors, {names}",
        )
    if not values or not all(v in known for v in values) or len(set(values)) < len(values):
        block.error("dtypes", f"it is {names}, not {shown(values)}")
    return tuple(values)


def masks(block: Table, gets_mask: bool) -> tuple[bool, ...]:
    values = block.items("causal", "a list of false and true", [False, True][: 1 + gets_mask])
    if not values or not all(type(v) is bool for v in values) or len(set(values)) < len(values):
        block.error("causal", f"it is a list of false and true, not {shown(values)}")
    return tuple(sorted(values))


def dim_pairs(block: Table) -> tuple[tuple[int, int], ...]:
    expected = "a list of pairs [head_dim, head_dim_v], for instance [[192, 128]]"
    found = []
    for pair in block.items("dim_pairs", expected, []):
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)):
            block.error("dim_pairs", f"it is {expected}, not {shown(pair)}")
        found.append((pair[0], pair[1]))
    return tuple(found)


def takes(block: Table) -> tuple[Feature, ...]:
    known: tuple[Feature, ...] = get_args(Feature)
    values = block.items("takes", f"a list of {', '.join(known)}", [])
    if not all(v in known for v in values) or len(set(values)) < len(values):
        block.error("takes", f"it is a list of {', '.join(known)}, not {shown(values)}")
    return tuple(values)


def lse(block: Table, has_argument: bool, is_feature: bool) -> Lse | None:
    if is_feature and not has_argument:
        block.error("takes", "no pass takes the argument `lse`")
    if "lse" in block.values and not has_argument:
        block.error("lse", "no pass takes the argument `lse`")
    table = block.table("lse", {})
    table.allow("base", "layout")
    base = table.choice("base", get_args(LseBase), "e")
    layout = table.choice("layout", get_args(LseLayout), "bhs")
    return Lse(base, layout) if has_argument else None


def include_folders(block: Table, path: Path) -> tuple[Path, ...]:
    folders = block.items("include", "a list of folders", [])
    if not all(isinstance(folder, str) for folder in folders):
        block.error("include", f"it is a list of folders in quotes, not {shown(folders)}")
    paths = tuple(path.parent / Path(folder).expanduser() for folder in folders)
    for folder, written in zip(paths, folders, strict=True):
        if not folder.is_dir():
            block.error("include", f"there is no folder {shown(written)} beside {path.name}")
    return paths


def cubins(block: Table, path: Path) -> tuple[Path, ...]:
    expected = 'the name of a file, or a list of them: ["fwd_80.cubin", "fwd_90.cubin"]'
    given = block.values.get("cubin", [])
    names = given if isinstance(given, list) else [given]
    if not all(isinstance(name, str) and name for name in names):
        block.error("cubin", f"it is {expected}, not {shown(given)}", code="cubin_name_form")
    for key in ("defines", "include", "std"):
        if names and key in block.values:
            block.error(
                key, "a cubin is compiled already: leave this out", code="cubin_is_compiled"
            )
    files = tuple(path.parent / Path(name).expanduser() for name in names)
    for file, name in zip(files, names, strict=True):
        if not file.is_file():
            block.error(
                "cubin",
                f"there is no file {shown(name)} beside {path.name}",
                code="cubin_file_missing",
            )
    return files


def compute_capability(block: Table) -> tuple[int, int]:
    key, expected = "min_compute_capability", "a compute capability such as 8.0"
    value = block.get(key, (int, float), expected, MIN_COMPUTE_CAPABILITY)
    if not 5 <= value < 100 or abs(10 * value - round(10 * value)) > 1e-6:
        block.error(key, f"it is {expected}, not {shown(value)}")
    tenths = round(10 * value)
    return tenths // 10, tenths % 10
