"""Arrays and messages between the caller and the child process.

Arrays are in an anonymous memory file that both map, so nothing remains however they end. Messages
are JSON after their length, over a socket pair, whose end of stream tells that the other process
has ended. Only the standard library is imported, because the child imports this.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import struct
import tempfile
import time
from typing import Any

_LENGTH = struct.Struct("<I")


class SharedSegment:
    """A growing shared memory in an unnamed file."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._size = 0

    @classmethod
    def create(cls) -> SharedSegment:
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("attune-arrays"))
        descriptor, name = tempfile.mkstemp(prefix="attune-arrays-")
        os.unlink(name)  # noqa: PTH108
        return cls(descriptor)

    def reserve(self, size: int) -> None:
        """Make it at least `size` bytes large.

        The caller has checked that memory suffices: pages are allocated when written, and a lack of
        memory would then end a process."""
        if size > self._size:
            os.ftruncate(self.descriptor, size)
            self.attach(size)

    def attach(self, size: int) -> None:
        """Map `size` bytes that the other side has reserved."""
        if size > self._size:
            self._map = mmap.mmap(self.descriptor, size)
            self._size = size

    @property
    def memory(self) -> mmap.mmap:
        if self._map is None:
            raise ValueError("nothing was reserved in the segment")
        return self._map

    def close(self) -> None:
        self._map = None  # unmapped when the last array that uses it is deleted
        self._size = 0
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


class Channel:
    """JSON messages over one end of a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        self.socket.settimeout(None)
        self.socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the next message.

        Raises:
            TimeoutError: none within `timeout_s`.
            EOFError: the other process has ended.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        message: dict[str, Any] = json.loads(self._read(length, deadline))
        return message

    def _read(self, size: int, deadline: float | None) -> bytes:
        data = bytearray()
        while len(data) < size:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise TimeoutError
            self.socket.settimeout(remaining)
            try:
                piece = self.socket.recv(size - len(data))
            except ConnectionError as error:
                raise EOFError from error
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def close(self) -> None:
        self.socket.close()
