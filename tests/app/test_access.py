"""Who reaches the app: the answers of the server's outermost layer, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from app.access import AccessControl, access_token

TOKEN = "s3cret"


def answer(path: str = "/", *, token: str = "", kind: str = "http", **headers: str) -> Any:
    """(status, headers, text) of one request, or the code a WebSocket was closed with."""
    raw, _, query = path.partition("?")
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": kind,
        "method": "GET",
        "scheme": "ws" if kind == "websocket" else "http",
        "path": raw,
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "server": ("127.0.0.1", 8501),
        "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
    }
    app = AccessControl(PlainTextResponse("the app"), token)
    asyncio.run(app(scope, receive, send))
    if sent[0]["type"] == "websocket.close":
        return sent[0]["code"]
    head = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
    return sent[0]["status"], head, sent[-1]["body"].decode()


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamlit.get_option", lambda _: ["localhost", "127.0.0.1"])


@pytest.mark.parametrize("host", ["localhost:8501", "127.0.0.1", "LOCALHOST:1", "localhost."])
def test_this_machines_own_names_get_in_and_nobody_frames_them(host: str) -> None:
    status, headers, text = answer(Host=host)
    assert (status, text) == (200, "the app")
    assert headers["content-security-policy"] == "frame-ancestors 'self'"
    assert headers["x-frame-options"] == "SAMEORIGIN"


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "[::1", "", "127.0.0.2"]
)
def test_any_other_name_is_refused_with_a_sentence(host: str) -> None:
    status, headers, text = answer(Host=host)
    assert status == 421
    assert "--server.allowedHosts" in text
    assert "frame-ancestors" in headers["content-security-policy"]
    assert answer(Host=host, kind="websocket") == 1008


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:8502",  # another server of this machine, to which cookies go too
        "http://127.0.0.1:8501",
        "http://localhost",
        "http://evil.example",
        "http://localhost:8501.evil.example",
        "http://localhost:8501@evil.example",
        "ftp://localhost:8501",
        "localhost:8501",
        "null",
        "",
    ],
)
def test_pages_of_other_addresses_are_refused_before_streamlit_sees_them(origin: str) -> None:
    for token in ("", TOKEN):
        cookie = {"Cookie": f"attune_token_8501={token}"}
        given = {"token": token, "Host": "localhost:8501", "Origin": origin, **cookie}
        assert answer("/_stcore/stream", kind="websocket", **given) == 1008
        status, _, text = answer("/_stcore/upload_file", **given)
        assert status == 403
        assert "another address" in text


@pytest.mark.parametrize("host", ["localhost:8501", "127.0.0.1:8501", "localhost"])
def test_its_own_pages_get_in(host: str) -> None:
    for scheme in ("http", "https"):  # behind a proxy the scheme is not known
        assert answer(Host=host, Origin=f"{scheme}://{host}")[0] == 200


def test_without_the_token_nobody_gets_in() -> None:
    for path in ("/", "/_stcore/health", "/?token=wrong", "/?token="):
        status, _, text = answer(path, token=TOKEN, Host="localhost:8501")
        assert status == 403
        assert "printed at its start" in text
    assert answer(token=TOKEN, Host="localhost:8501", kind="websocket") == 1008
    wrong = answer(token=TOKEN, Host="localhost:8501", Cookie="attune_token_8501=s3cre")
    assert wrong[0] == 403


def test_the_printed_url_becomes_a_cookie_and_leaves_the_address_bar() -> None:
    status, headers, _ = answer(f"/sweep?b=4&token={TOKEN}", token=TOKEN, Host="localhost:8501")
    assert (status, headers["location"]) == (303, "/sweep?b=4")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    pair = cookie.partition(";")[0]
    assert answer(token=TOKEN, Host="localhost:8501", Cookie=pair)[0] == 200


def test_the_token_is_made_or_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert access_token([]) == ""
    made = access_token(["--token"])
    assert len(made) >= 32
    assert made != access_token(["--token"])
    monkeypatch.setenv("ATTUNE_TOKEN", "mine")
    assert access_token([]) == access_token(["--token"]) == "mine"
    with pytest.raises(SystemExit):
        access_token(["--token=visible-to-ps"])
