"""The address of a Dask scheduler, as a person types it."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from engine.errors import InvalidProblem

_SCHEMES = ("tcp", "tls")


def parse_address(text: str) -> str:
    """`tcp://HOST:PORT` from `HOST:PORT`, `tcp://HOST:PORT` or `tls://HOST:PORT`.

    Raises:
        InvalidProblem: anything else.
    """
    text = text.strip()
    try:
        parts = urlsplit(text if "://" in text else f"tcp://{text}")
        good = parts.scheme in _SCHEMES and parts.hostname and parts.port
        good = good and not (parts.path or parts.query or parts.fragment or parts.username)
    except ValueError:  # a port that is no number, brackets that do not close
        good = False
    if not good or any(c.isspace() for c in text):
        raise InvalidProblem(
            f"{text!r} is not the address of a Dask scheduler: it prints its own when it starts, "
            "for instance tcp://192.168.1.5:8786."
        )
    return parts.geturl()


def is_loopback(text: str) -> bool:
    """Whether an address leads to this machine alone.

    Raises:
        InvalidProblem: it is no address.
    """
    host = urlsplit(parse_address(text)).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
