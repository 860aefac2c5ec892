"""Access control of the app: host names, frames and the token.

The app compiles and runs native code, so it listens on the loopback interface only. It must still
refuse other users of this machine and foreign web pages, also from other ports of this machine.
Such pages could rebind their host name to 127.0.0.1, connect from their own origin, or frame the
app. Streamlit checks only the Host of its WebSocket, accepts every local Origin, asks an external
server for this machine's address for any other Origin, and sends no frame policy.
"""

from __future__ import annotations

import argparse
import hmac
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

import streamlit as st
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.preparation import prepare

HEADERS = {
    # Streamlit's own components are frames of the same origin.
    "Content-Security-Policy": "frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
_PARAMETER = "token"
_LOOPBACK = ("localhost", "127.0.0.1")


def access_token(arguments: Sequence[str]) -> str:
    """Return the token that visitors must present, or "" if none is required.

    `ATTUNE_TOKEN` gives the token; `--token` makes a new one. The option takes no value, because
    other users of a machine can see the arguments of its processes.
    """
    parser = argparse.ArgumentParser(prog="streamlit run app/main.py --", allow_abbrev=False)
    parser.add_argument(
        "--token",
        action="store_true",
        help="require the URL with a token that is printed at the start",
    )
    wants_one = parser.parse_args(arguments).token
    return os.environ.get("ATTUNE_TOKEN") or (secrets.token_urlsafe(24) if wants_one else "")


def started(token: str) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return a lifespan of the server that prints the URL with the token and prepares the first
    page."""

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        if token:
            port = st.get_option("server.port")
            query = urlencode({_PARAMETER: token})
            url = f"http://{own_name(token) or 'localhost'}:{port}/?{query}"
            print(f"\n  Open this URL and share it with nobody: {url}\n", flush=True)
        prepare()
        yield

    return lifespan


class AccessControl:
    """Refuse foreign host names and visitors without the token; add security headers to
    responses."""

    def __init__(self, app: ASGIApp, token: str = "") -> None:
        self._app = app
        self._token = token
        self._name = own_name(token)
        self._secret = secrets.token_bytes(32)  # signs the cookie, which does not contain the token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(HTTPConnection(scope))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if refusal is None:
            await self._app(scope, receive, send_with_headers)
        elif scope["type"] == "http":
            await refusal(scope, receive, send_with_headers)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, connection: HTTPConnection) -> Response | None:
        """Return the response that refuses a connection, or None if it is allowed."""
        host = _host_name(connection.headers.get("host", ""))
        if host not in _allowed_hosts() and not (self._name and host == self._name):
            return PlainTextResponse(
                f"Attune does not answer to this host name. If {host or 'it'} is a name of this "
                "machine, start Attune with --server.allowedHosts and that name.",
                status_code=421,
            )
        if not _is_own_page(connection):
            return PlainTextResponse(
                "Refused: the request comes from a page of another address than Attune's own. "
                "Behind a proxy, have the proxy pass on the Host header unchanged.",
                status_code=403,
            )
        if not self._token:
            return None
        url = connection.url
        cookie = f"attune_session_{url.port or 80}"  # cookies are not specific to a port
        given = connection.query_params.get(_PARAMETER)
        if given is not None and _is_equal(given, self._token):
            if self._name and host in _LOOPBACK:
                return RedirectResponse(str(url.replace(hostname=self._name)), 303)
            url = url.remove_query_params(_PARAMETER)
            # Exactly one slash: after two, a browser reads a host name.
            path = "/" + url.path.lstrip("/")
            answer = RedirectResponse(path + ("?" + url.query if url.query else ""), 303)
            answer.set_cookie(cookie, self._session(host), httponly=True, samesite="strict")
            return answer
        if _is_equal(connection.cookies.get(cookie, ""), self._session(host)):
            return None
        return PlainTextResponse(
            "This server requires a token: open the URL that it printed at its start.",
            status_code=403,
        )

    def _session(self, host: str) -> str:
        """Return the session cookie of a visitor who presented the token, valid only for this
        host name."""
        return hmac.new(self._secret, host.encode(), "sha256").hexdigest()


def _is_equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def own_name(token: str) -> str:
    """Return the secret host name derived from the token, or "" if Streamlit would not accept it.

    Browsers resolve all names under `localhost` to this machine and send a name's cookies to all
    its ports. Cookies of `localhost` itself would reach every other server on this machine.
    """
    if not token or "*.localhost" not in st.get_option("server.allowedHosts"):
        return ""
    return f"attune-{hmac.new(token.encode(), b'name', 'sha256').hexdigest()[:16]}.localhost"


def _allowed_hosts() -> list[str]:
    """Return the literal names of the `allowedHosts` setting, without patterns."""
    names = (str(name).lower() for name in st.get_option("server.allowedHosts"))
    return [name for name in names if "*" not in name]


def _is_own_page(connection: HTTPConnection) -> bool:
    """True if the request comes from a page of the requested host and port, or from no page.

    Browsers send the page's `Origin` with every WebSocket and form, but not with a URL typed by the
    user; programs need not send it.
    """
    origins, hosts = (connection.headers.getlist(name) for name in ("origin", "host"))
    if not origins:
        return True
    scheme, _, netloc = origins[0].partition("://")
    return origins[1:] == hosts[1:] == [] and scheme in ("http", "https") and netloc == hosts[0]


def _host_name(header: str) -> str:
    """Return the name in a Host header, without its port; "" if the header is invalid."""
    try:
        parts = urlsplit(f"//{header}")
        return (parts.hostname or "").rstrip(".") if parts.port != 0 else ""
    except ValueError:
        return ""
