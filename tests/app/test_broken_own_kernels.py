"""Own kernels that cannot be launched or read do not break the pages for other kernels."""

from __future__ import annotations

import pytest
from app_driver import texts
from words import says

BLOCK = """\
/* attune
head_dims = [64]
{top}

[[passes]]
entry = "k"
grid = ["{grid}", "num_heads", 1]
threads = 128
args = ["q", "k", "v", "out", {{name = "x", ctype = "float32", value = "{value}"}}{more}]

[work]
query_rows = "{rows}"
*/
__global__ void k() {{}}
"""
USUAL = {"top": "", "grid": "batch", "value": "1.5", "more": "", "rows": "64"}
BAD = {
    "bad_number": {"value": "1/(1e-300*1e-300)"},
    "bad_page": {"top": 'page_rows = "seqlen - seqlen"', "more": ', "block_table"'},
    "bad_rows": {"rows": "0 - seqlen"},
    "bad_grid": {"grid": "batch - 4096"},
    "bad_text": {"grid": "batch *"},
}


@pytest.fixture
def broken_kernels(tmp_path, monkeypatch):
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "good.cu").write_text(BLOCK.format(**USUAL))
    for name, fields in BAD.items():
        (folder / f"{name}.cu").write_text(BLOCK.format(**USUAL | fields))
    monkeypatch.setenv("ATTUNE_KERNELS", str(folder))


@pytest.mark.usefixtures("broken_kernels")
@pytest.mark.parametrize("page", ["tune", "batch"])
def test_ladder_is_listed_despite_bad_kernels(open_app, page):
    at = open_app(page, gpu="L4")
    assert not at.exception
    offered = next(box.options for box in at.selectbox if box.key and "variant" in box.key)
    assert any("good" in option for option in offered)
    assert any("v01" in option for option in offered)


@pytest.mark.usefixtures("broken_kernels")
@pytest.mark.parametrize("name", [name for name in BAD if name != "bad_text"])
def test_bad_kernel_gives_a_message(open_app, name):
    at = open_app("batch", gpu="L4", variant=name)
    assert not at.exception
    said = texts(at).replace("\\", "")
    assert says(said, "cannot_launched_problem", f"{name}")
