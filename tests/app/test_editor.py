"""The link that opens a source in an editor: its target, and when there is no link."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from words import says

from app.evaluation import editor
from app.evaluation.editor import editor_link

SOURCE = Path("/kernels of mine/v99#1.cu")


@pytest.fixture(autouse=True)
def local(monkeypatch):
    """Simulate a browser on this machine; return the settings that a test may change."""
    context = SimpleNamespace(url="http://localhost:8501/tune", ip_address=None)
    monkeypatch.setattr(editor, "st", SimpleNamespace(context=context))
    for name in ("ATTUNE_EDITOR", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    return context


def test_the_path_is_quoted_and_the_line_named():
    assert editor_link(SOURCE, 12).url == "vscode://file/kernels%20of%20mine/v99%231.cu:12"


def test_another_editor_is_named_by_a_template(monkeypatch):
    monkeypatch.setenv("ATTUNE_EDITOR", "idea://open?file={path}&line={line}")
    assert editor_link(Path("/a&b.cu"), 3).url == "idea://open?file=/a%26b.cu&line=3"
    monkeypatch.setenv("ATTUNE_EDITOR", "off")
    assert editor_link(SOURCE, 1) == ("", "")


@pytest.mark.parametrize(
    "template",
    [
        "javascript:alert('{path}')",
        "https://example.com/{path}",
        "file://{path}",
        "vscode://file",
        "vscode://file{path}\nx",
        "{path}",
    ],
)
def test_an_invalid_editor_template_gives_a_message(monkeypatch, template):
    monkeypatch.setenv("ATTUNE_EDITOR", template)
    link = editor_link(SOURCE, 1)
    assert link.url == ""
    assert says(link.error, "link_editor_begins", "vscode")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://gpu-box:8501/", None),
        ("http://localhost:8501/", "192.168.0.7"),
        ("", None),
    ],
)
def test_no_editor_link_from_another_machine(local, url, address):
    local.url, local.ip_address = url, address
    assert editor_link(SOURCE, 1) == ("", "")


def test_over_ssh_only_a_configured_editor_is_linked(monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.2 5000 10.0.0.3 22")
    assert editor_link(SOURCE, 1) == ("", "")
    monkeypatch.setenv("ATTUNE_EDITOR", "vscode://vscode-remote/ssh-remote+box{path}:{line}")
    assert editor_link(Path("/a.cu"), 1).url == "vscode://vscode-remote/ssh-remote+box/a.cu:1"
