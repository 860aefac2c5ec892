"""The module that calls CuPy, without a GPU: names that it uses exist, and its kernel compiles."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from engine.backends.cuda import calls
from engine.cuda_source import compile_kernel

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

SOURCE = Path(calls.__file__)
MODULES = {
    "_cuda": cupy.cuda,
    "_runtime": cupy.cuda.runtime,
    "_driver": cupy.cuda.driver,
    "_stream": cupy.cuda.Stream,
    "_pool": cupy.cuda.MemoryPool,
}


def used_names() -> set[tuple[str, str]]:
    """Return (member, attribute) of every `self.member.attribute` in the module."""
    return {
        (node.value.attr, node.attr)
        for node in ast.walk(ast.parse(SOURCE.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and isinstance(node.value.value, ast.Name)
        and node.value.value.id == "self"
    }


def test_cupy_has_every_name_that_is_used() -> None:
    used = {(member, name) for member, name in used_names() if member in MODULES}
    assert ("_runtime", "memcpyAsync") in used
    missing = {
        f"{member}.{name}"
        for member, name in used
        # A stream's `ptr` is an attribute of instances.
        if name != "ptr" and not hasattr(MODULES[member], name)
    }
    assert missing == set()


def test_cupy_has_the_names_that_are_put_together() -> None:
    runtime = cupy.cuda.runtime
    for name in ("HostToDevice", "DeviceToHost", "DeviceToDevice"):
        assert hasattr(runtime, f"memcpy{name}")
    for name in ("L2CacheSize", "MaxSharedMemoryPerBlockOptin"):
        assert hasattr(runtime, f"cudaDevAttr{name}")


@pytest.mark.parametrize("arch", ["sm_75", "sm_89", "sm_90", "sm_120"])
def test_the_fingerprint_kernel_compiles(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))
    source = SOURCE.with_name("fingerprint.cu")
    info = compile_kernel(source, (), arch, ("fingerprint",)).entries["fingerprint"]
    assert info.spill_store_bytes == info.stack_bytes == 0
