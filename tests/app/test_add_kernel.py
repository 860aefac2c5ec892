"""The kernels that were added: what the page shows of them, and taking one off the list."""

from __future__ import annotations

import shutil
from pathlib import Path

from engine.own_kernels.registry import keep_kernel, kept_kernels

DATA = Path(__file__).resolve().parents[1] / "own_kernels" / "kernels"


def test_an_added_kernel_is_a_variant_until_it_is_removed(open_app, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "data"))
    for file in DATA.glob("naive_flash.*"):
        shutil.copy(file, tmp_path)
    keep_kernel(tmp_path / "naive_flash.cu")
    at = open_app(gpu="L4", variant="naive_flash")
    assert at.selectbox(key="variant").value == "naive_flash"
    at.button(key="add_kernel").click().run()
    at.button(key="forget_naive_flash").click().run()
    assert kept_kernels() == []
    assert not at.exception
    at.run()
    assert not at.exception
    assert at.selectbox(key="variant").value == "auto"
