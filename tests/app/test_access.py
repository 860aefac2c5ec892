"""Access checks of the app: answers of the server's outermost ASGI layer, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from streamlit import config
from words import says

from app.access import AccessControl, access_token, own_name

TOKEN = "s3cret"


def answer(
    path: str = "/", *, token: str = "", kind: str = "http", server: Any = None, **headers: str
) -> Any:
    """Return (status, headers, text) of one request, or the close code of a WebSocket."""
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
    app = server or AccessControl(PlainTextResponse("the app"), token)
    asyncio.run(app(scope, receive, send))
    if sent[0]["type"] == "websocket.close":
        return sent[0]["code"]
    head = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
    return sent[0]["status"], head, sent[-1]["body"].decode()


ALLOWED_HOSTS = "server.allowedHosts"


@pytest.fixture(autouse=True)
def _names() -> Iterator[None]:
    before = config.get_option(ALLOWED_HOSTS)
    config.set_option(ALLOWED_HOSTS, ["localhost", "127.0.0.1", "*.localhost", "box"])
    yield
    config.set_option(ALLOWED_HOSTS, before)


@pytest.mark.parametrize("host", ["localhost:8501", "127.0.0.1", "LOCALHOST:1", "localhost."])
def test_local_host_names_are_accepted_and_framing_is_refused(host: str) -> None:
    status, headers, text = answer(Host=host)
    assert (status, text) == (200, "the app")
    assert headers["content-security-policy"] == "frame-ancestors 'self'"
    assert headers["x-frame-options"] == "SAMEORIGIN"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "[::1",
        "",
        "127.0.0.2",
        "a.localhost",
        "localhost:x",
        "*.localhost",
    ],
)
def test_other_host_names_are_refused_with_a_message(host: str) -> None:
    status, headers, text = answer(Host=host)
    assert status == 421
    assert "--server.allowedHosts" in text
    assert "frame-ancestors" in headers["content-security-policy"]
    assert answer(Host=host, kind="websocket") == 1008


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:8502",  # another server on this machine, which receives the same cookies
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
def test_other_origins_are_refused_before_streamlit(origin: str) -> None:
    for token in ("", TOKEN):
        cookie = {"Cookie": f"attune_token_8501={token}"}
        given = {"token": token, "Host": "localhost:8501", "Origin": origin, **cookie}
        assert answer("/_stcore/stream", kind="websocket", **given) == 1008
        status, _, text = answer("/_stcore/upload_file", **given)
        assert status == 403
        assert says(text, "another_address_came")


@pytest.mark.parametrize("host", ["localhost:8501", "127.0.0.1:8501", "localhost"])
def test_own_origin_is_accepted(host: str) -> None:
    for scheme in ("http", "https"):  # behind a proxy the scheme is unknown
        assert answer(Host=host, Origin=f"{scheme}://{host}")[0] == 200


def test_requests_without_token_are_refused() -> None:
    for path in ("/", "/_stcore/health", "/?token=wrong", "/?token="):
        status, _, text = answer(path, token=TOKEN, Host="localhost:8501")
        assert status == 403
        assert says(text, "printed_at_its")
    assert answer(token=TOKEN, Host="localhost:8501", kind="websocket") == 1008
    for name in ("attune_session_8501", "attune_token_8501"):
        for value in (TOKEN, "", "0" * 64):
            given = {"Host": "localhost:8501", "Cookie": f"{name}={value}"}
            assert answer(token=TOKEN, **given)[0] == 403


def signed_in(server: Any, host: str, path: str) -> tuple[str, str]:
    """Return (redirect location, cookie) of a visit with the token."""
    status, headers, _ = answer(path, server=server, Host=host)
    assert status == 303
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Domain" not in cookie
    return headers["location"], cookie.partition(";")[0]


def test_token_of_url_becomes_a_cookie_and_is_removed_from_url() -> None:
    server, host = AccessControl(PlainTextResponse("the app"), TOKEN), f"{own_name(TOKEN)}:8501"
    leads, pair = signed_in(server, host, f"/sweep?b=4&token={TOKEN}")
    assert leads == "/sweep?b=4"
    assert TOKEN not in pair
    assert signed_in(server, host, f"//evil.example/?token={TOKEN}")[0] == "/evil.example/"
    assert answer(server=server, Host=host, Cookie=pair)[0] == 200
    other = AccessControl(PlainTextResponse("the app"), TOKEN)
    assert answer(server=other, Host=host, Cookie=pair)[0] == 403  # a secret of this server


def test_session_cookie_is_bound_to_one_host() -> None:
    """The cookie is set for a name of its own, as all servers on `localhost` share cookies."""
    server, name = AccessControl(PlainTextResponse("the app"), TOKEN), own_name(TOKEN)
    assert name.startswith("attune-")
    assert name.endswith(".localhost")
    assert len({own_name("a"), own_name("b"), own_name("")}) == 3
    for host in ("localhost:8501", "127.0.0.1:8501", "localhost"):
        path = f"/sweep?b=4&token={TOKEN}"
        status, headers, _ = answer(path, server=server, Host=host)
        assert (status, "set-cookie" in headers) == (303, False)
        port = host.partition(":")[2]
        assert headers["location"] == f"http://{name}{':' if port else ''}{port}{path}"
    _, pair = signed_in(server, f"{name}:8501", f"/?token={TOKEN}")
    assert answer(server=server, Host="localhost:8501", Cookie=pair)[0] == 403
    _, of_box = signed_in(server, "box:8501", f"/?token={TOKEN}")
    assert of_box != pair
    assert answer(server=server, Host="box:8501", Cookie=pair)[0] == 403
    assert answer(server=server, Host="box:8501", Cookie=of_box)[0] == 200


def test_localhost_names_that_streamlit_refuses_are_not_used() -> None:
    config.set_option(ALLOWED_HOSTS, ["localhost"])
    server = AccessControl(PlainTextResponse("the app"), TOKEN)
    _, pair = signed_in(server, "localhost:8501", f"/?token={TOKEN}")
    assert answer(server=server, Host="localhost:8501", Cookie=pair)[0] == 200
    assert answer(server=server, Host="attune-0123456789abcdef.localhost")[0] == 421


def test_token_is_generated_or_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert access_token([]) == ""
    made = access_token(["--token"])
    assert len(made) >= 32
    assert made != access_token(["--token"])
    monkeypatch.setenv("ATTUNE_TOKEN", "mine")
    assert access_token([]) == access_token(["--token"]) == "mine"
    with pytest.raises(SystemExit):
        access_token(["--token=visible-to-ps"])
