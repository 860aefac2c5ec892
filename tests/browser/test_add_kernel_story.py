"""Story of an own kernel: added by path, described in a form, run, edited."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from app_server import WAIT_MS, Driver
from playwright.sync_api import Locator, expect

from engine.cuda_source import compile_kernel

pytestmark = [pytest.mark.browser, pytest.mark.slow]

DATA = Path(__file__).resolve().parents[1] / "own_kernels" / "kernels"
CUBIN_BLOCK = """/* attune
cubin = "rows.cubin"
head_dims = [64]
dtypes = ["float16"]
causal = [false]
work = {math_unit = "fma"}

[[passes]]
entry = "_Z9half_rowsPK6__halfS1_S1_PS_iiiif"
grid = "ceil_div(batch * num_heads * seqlen, 4)"
threads = 128
args = ["q", "k", "v", "out", "batch", "num_heads", "seqlen", "head_dim", "softmax_scale"]
*/
"""


def test_add_describe_run_and_edit_a_kernel(new_tab, tmp_path):
    source = tmp_path / "story_flash.cu"
    shutil.copy(DATA / "naive_flash.cu", source)
    app = new_tab("/?gpu=L4&B=2&H=3&S=70")
    app.see_metric("Latency", "predicted")

    # A path without a kernel gives one sentence; a kernel without a description gets the form.
    app.press("add_kernel")
    dialog = app.page.get_by_role("dialog")

    def box(label):
        return dialog.get_by_role("textbox", name=label, exact=True)

    path = box("Source file on this machine")
    path.fill(str(tmp_path / "nothing.cu"))
    path.press("Enter")
    expect(dialog).to_contain_text("it cannot be read", timeout=WAIT_MS)
    path.fill(str(source))
    path.press("Enter")
    expect(box("Entry")).to_have_value("flash_attn_fwd", timeout=WAIT_MS)
    expect(box("Grid y")).to_have_value("batch * num_heads")
    expect(dialog).to_contain_text("On B2 H3 S70 D64 fp16")

    # A mistake is named at once; a valid formula is accepted.
    smem = box("Dynamic shared memory, bytes")
    smem.fill("2 * 32 * head_dims * 4")
    smem.press("Enter")
    expect(dialog).to_contain_text("there is no head_dims: did you mean", timeout=WAIT_MS)
    smem.fill("2 * 32 * head_dim * 4")
    smem.press("Enter")
    expect(dialog).not_to_contain_text("there is no head_dims", timeout=WAIT_MS)
    app.rest()
    dialog.get_by_role("button", name="Write it beside the file and add").click()

    # It is the selected variant, runs and is correct; the source is unchanged.
    expect(dialog).to_have_count(0, timeout=WAIT_MS)
    app.see("story_flash")
    app.see_metric("Waves", "18 CTAs")
    app.press("run")
    # The first run with an empty cache also builds the CPU backend's runtime.
    expect(app.metric("Correctness")).to_contain_text("Passed", timeout=3 * WAIT_MS)
    assert source.read_bytes() == (DATA / "naive_flash.cu").read_bytes()
    sidecar = source.with_name("story_flash.attune.toml")
    assert 'entry = "flash_attn_fwd"' in sidecar.read_text(encoding="utf-8")

    # An edit of the source is noticed, and its error is named.
    app.rest()
    app.page.get_by_text("Rerun on change").click()
    text = source.read_text(encoding="utf-8")
    source.write_text(text.replace("m + logf(l)", "m + log2f(l)"), encoding="utf-8")
    app.see_metric("Correctness", "Incorrect")
    app.tab("Correctness")
    app.see("LSE is wrong")

    # A finding with a line opens the source there.
    twice = "s *= softmax_scale * softmax_scale;"
    source.write_text(text.replace("s *= softmax_scale;", twice), encoding="utf-8")
    # The verdict line has a button of the same name above.
    named = app.page.get_by_role("button", name="story_flash.cu:58").filter(has_text=twice)
    expect(named).to_contain_text(twice, timeout=WAIT_MS)
    line = app.page.locator(".attune-source-line")
    app.click(named, line)
    expect(line).to_have_attribute("data-line", "58", timeout=WAIT_MS)
    expect(line).to_be_in_viewport()
    link = app.page.get_by_role("link", name="Open in editor")
    expect(link).to_have_attribute("href", f"vscode://file{source}:58")
    app.no_exception()

    # A link has the name of the kernel only: a path in a link adds no kernel.
    other = new_tab(f"/?variant={source}")
    other.see("There is no variant called")


@pytest.mark.exhaustive
def test_dropped_files_are_tried_together_and_added(new_tab):
    """A source and its header are dropped on the dialog; three kernels become passes of one."""
    app = new_tab("/?gpu=L4&B=1&H=2&S=70")
    app.see_metric("Latency", "predicted")
    app.press("add_kernel")
    dialog = app.page.get_by_role("dialog")
    files = {
        name: (DATA / name).read_text(encoding="utf-8")
        for name in ("extension_rows.cu", "softmax_bits.cuh")
    }
    dragged = app.page.evaluate_handle(
        """files => {
            const dragged = new DataTransfer();
            for (const [name, text] of Object.entries(files))
                dragged.items.add(new File([text], name));
            return dragged;
        }""",
        files,
    )
    zone = dialog.get_by_test_id("stFileUploaderDropzone")
    zone.dispatch_event("drop", {"dataTransfer": dragged})
    entry = dialog.get_by_role("textbox", name="Entry", exact=True)
    expect(entry).to_have_value("score_rows", timeout=WAIT_MS)
    expect(dialog).to_contain_text("score_rows, normalize_rows, mix_rows")
    app.rest()
    dialog.get_by_role("button", name="Write it beside the file and add").click()
    expect(dialog).to_have_count(0, timeout=3 * WAIT_MS)  # after it is compiled and executed
    app.see("extension_rows")
    app.no_exception()


def drop(app: Driver, files: dict[str, bytes]) -> Locator:
    """Return the dialog that adds a kernel, after dropping the files on it."""
    app.press("add_kernel")
    dialog = app.page.get_by_role("dialog")
    dragged = app.page.evaluate_handle(
        """files => {
            const dragged = new DataTransfer();
            for (const [name, bytes] of Object.entries(files))
                dragged.items.add(new File([new Uint8Array(bytes)], name));
            return dragged;
        }""",
        {name: list(content) for name, content in files.items()},
    )
    zone = dialog.get_by_test_id("stFileUploaderDropzone")
    zone.dispatch_event("drop", {"dataTransfer": dragged})
    return dialog


def run_and_read(app: Driver) -> str:
    """Run the kernel; return the verdict line of the passing run, with its simulated time."""
    app.press("run")
    expect(app.metric("Correctness")).to_contain_text("Passed", timeout=3 * WAIT_MS)
    app.see_metric("Latency", "by machine code")
    verdict = app.key("verdict")
    expect(verdict).to_contain_text("of the ", timeout=WAIT_MS)
    return verdict.inner_text()


@pytest.mark.exhaustive
def test_a_half_kernel_and_a_cubin_are_checked_saved_and_compared_with_a_rung(new_tab, server):
    app = new_tab("/?gpu=L4&B=1&H=2&S=70&variant=v08")
    assert "Correct" in run_and_read(app)

    # An unmodified half-precision kernel with its own `main`.
    source = DATA / "half_rows.cu"
    dialog = drop(app, {source.name: source.read_bytes()})
    entry = dialog.get_by_role("textbox", name="Entry", exact=True)
    expect(entry).to_have_value("half_rows", timeout=WAIT_MS)
    app.rest()
    dialog.get_by_role("button", name="Write it beside the file and add").click()
    expect(dialog).to_have_count(0, timeout=3 * WAIT_MS)
    app.see("half_rows")
    assert "Correct" in run_and_read(app)

    # Machine code of another compiler, with its description.
    cubin = compile_kernel(source, (), "sm_89", ("half_rows",)).cubin
    dialog = drop(app, {"rows.cubin": cubin, "rows_cubin.cu": CUBIN_BLOCK.encode()})
    expect(dialog).to_contain_text("has its own description", timeout=WAIT_MS)
    app.rest()
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog).to_have_count(0, timeout=3 * WAIT_MS)
    app.see("rows_cubin")
    assert "Correct" in run_and_read(app)
    app.tab("Machine code")
    app.see("The ten hottest lines")

    # All three are in the working session and can be compared.
    app.open("/sessions")
    before = set(server.sessions.glob("*.json.gz"))
    app.press("working_save")
    app.see("Saved as")
    (saved,) = set(server.sessions.glob("*.json.gz")) - before
    app.open(f"/compare?session={saved.name}&compare_by=picked")
    app.select("compare_before", "v08")
    app.see_metric("Simulated slower", "1")
    app.see("Before and after")
    app.no_exception()
