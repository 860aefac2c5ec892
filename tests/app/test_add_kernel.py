"""Own kernels on the Tune page: adding one, what the page shows of it, and removing it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from app_driver import metric, texts, until
from words import says

from engine.attention.config import added_kernels
from engine.cuda_source import compile_kernel
from engine.jobs.manager import use_manager
from engine.own_kernels.registry import register_kernel

BLOCK = """/* attune
cubin = "rows.cubin"
head_dims = [64]
dtypes = ["float32"]
[[passes]]
entry = "attention_rows"
grid = "batch * num_heads * ceil_div(seqlen, 64)"
threads = 64
args = ["q", "k", "v", "out", "num_heads", "seqlen"]
*/
"""
DATA = Path(__file__).resolve().parents[1] / "own_kernels" / "kernels"


@pytest.fixture
def own_worker() -> Iterator[None]:
    """Start a worker for this test, as a running one looks for own kernels in another folder."""

    def end() -> None:
        if (left := use_manager(None)) is not None:
            left.close()

    end()
    yield
    end()


def test_an_added_kernel_is_a_variant_until_it_is_removed(open_app, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "data"))
    for file in DATA.glob("naive_flash.*"):
        shutil.copy(file, tmp_path)
    register_kernel(tmp_path / "naive_flash.cu")
    at = open_app(gpu="L4", variant="naive_flash")
    assert at.selectbox(key="variant").value == "naive_flash"
    at.button(key="add_kernel").click().run()
    at.button(key="forget_naive_flash").click().run()
    assert added_kernels() == []
    assert not at.exception
    at.run()
    assert not at.exception
    assert at.selectbox(key="variant").value == "auto"


def test_a_kernel_is_tried_before_it_is_added(open_app, tmp_path, monkeypatch):
    """For an incorrect kernel the page says so, and the button offers to add it anyway."""
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "data"))
    right = (DATA / "float_rows.cu").read_text(encoding="utf-8")
    wrong = right.replace("/ l;", "/ (l + 1.0f);")
    (tmp_path / "wrong_rows.cu").write_text(wrong, encoding="utf-8")
    at = open_app(gpu="L4")
    at.button(key="add_kernel").click().run()
    at.text_input(key="add_path").set_value(str(tmp_path / "wrong_rows.cu")).run()
    at.button(key="add_described").click().run()
    assert added_kernels() == []
    assert any(says(error.value, "incorrect_on", "B1 H2 S37") for error in at.error)
    assert says(at.button(key="add_described").label, "all_the_same", "Add")
    assert not at.exception


def test_a_float_kernel_is_shown_and_selected_in_its_own_format(open_app, tmp_path, monkeypatch):
    """An FP32 kernel is accepted on a page set to FP16, which then shows its format and mask."""
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "data"))
    text = (DATA / "float_rows.cu").read_text(encoding="utf-8")
    only_causal = text.replace("\nhead_dims =", "\ncausal = [true]\nhead_dims =", 1)
    (tmp_path / "float_rows.cu").write_text(only_causal, encoding="utf-8")
    at = open_app(gpu="L4", S="37", H="2")
    assert at.session_state["dtype"] == "float16"
    before = at.session_state["variant"]
    at.button(key="add_kernel").click().run()
    at.text_input(key="add_path").set_value(str(tmp_path / "float_rows.cu")).run()
    assert not at.error
    assert "On B1 H2 S37 D64 fp32 causal" in texts(at)
    at.button(key="add_described").click().run()
    assert [path.name for path in added_kernels()] == ["float_rows.cu"]
    assert not at.exception
    at.run()
    assert at.session_state["variant"] == "float_rows"
    assert at.session_state["dtype"] == "float32"
    assert at.session_state["causal"] is True
    # A poll by a browser that does not have this page yet still sends the menu's old value.
    at.session_state["variant"] = before
    at.run()
    assert at.session_state["variant"] == "float_rows"
    at.selectbox(key="variant").set_value("v02").run()
    assert (at.session_state["variant"], at.session_state["dtype"]) == ("v02", "float16")
    at.toggle(key="causal").set_value(False).run()
    at.selectbox(key="variant").set_value("float_rows").run()
    assert (at.session_state["dtype"], at.session_state["causal"]) == ("float32", True)


@pytest.mark.slow
def test_another_compilers_machine_code_is_tried_and_added(open_app, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "data"))
    macros = (("CAUSAL", "0"), ("HEAD_DIM", "64"))
    made = compile_kernel(DATA / "float_rows.cu", macros, "sm_89", ("attention_rows",))
    (tmp_path / "rows.cubin").write_bytes(made.cubin)
    (tmp_path / "rows.cu").write_text(BLOCK, encoding="utf-8")
    at = open_app(gpu="L4", S="37", H="2", dtype="float32", tab="Machine code")
    at.button(key="add_kernel").click().run()
    at.text_input(key="add_path").set_value(str(tmp_path / "rows.cu")).run()
    assert not says(texts(at), "there_is_no")
    at.button(key="add_described").click().run(timeout=240)  # the first run builds the executor
    assert [path.name for path in added_kernels()] == ["rows.cu"]
    assert not at.exception


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("own_worker")
def test_another_compilers_machine_code_runs_on_the_page(open_app, tmp_path, monkeypatch):
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "data"))
    macros = (("CAUSAL", "0"), ("HEAD_DIM", "64"))
    made = compile_kernel(DATA / "float_rows.cu", macros, "sm_89", ("attention_rows",))
    (tmp_path / "rows.cubin").write_bytes(made.cubin)
    (tmp_path / "rows.cu").write_text(BLOCK, encoding="utf-8")
    register_kernel(tmp_path / "rows.cu")
    at = open_app(gpu="L4", S="37", H="2", dtype="float32", variant="rows", tab="Machine code")
    at.button(key="run").click().run()
    until(at, lambda page: metric(page, "Correctness") != "–", timeout_s=240)
    assert metric(at, "Correctness") == "Passed"
    until(at, lambda page: "The ten hottest" in texts(page), timeout_s=120)
    assert not at.exception
