"""Addresses of Dask schedulers, and the workers that take part in a sweep."""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from engine.base.errors import AttuneError, ClusterError, InvalidProblem
from engine.pipeline.request import EvaluationRequest
from engine.search.cluster import dask_worker as cluster_worker
from engine.search.cluster.dask_worker import Description

_SCHEMES = ("tcp", "tls")


def parse_address(text: str) -> str:
    """Parse `HOST:PORT`, `tcp://HOST:PORT` or `tls://HOST:PORT`.

    Raises:
        InvalidProblem: anything else.
    """
    text = text.strip()
    try:
        parts = urlsplit(text if "://" in text else f"tcp://{text}")
        good = parts.scheme in _SCHEMES and parts.hostname and parts.port
        good = good and not (parts.path or parts.query or parts.fragment or parts.username)
    except ValueError:  # an invalid port, or unbalanced brackets
        good = False
    if not good or any(c.isspace() for c in text):
        raise InvalidProblem(
            f"{text!r} is not the address of a Dask scheduler: it prints its own when it starts, "
            "for instance tcp://192.168.1.5:8786.",
            code="scheduler_address",
        )
    return parts.geturl()


def is_loopback(text: str) -> bool:
    """True if an address is a loopback address.

    Raises:
        InvalidProblem: it is not an address.
    """
    host = urlsplit(parse_address(text)).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# The workers of a Dask cluster that take part in a sweep: joining, excluded and lost ones.
#
# A worker takes part once it has described itself and its sources equal this machine's, because
# results of different sources are never mixed. If any worker measures on a GPU, workers that can
# only predict are excluded.


_POLL_S = 0.05
_ASK_S = 10.0  # time to transfer an available answer


class Call:
    """A call that is executed by unpickling it.

    Only a function of the standard library and some bytes are sent, so the scheduler, which also
    unpickles them, does not need Attune.
    """

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = (function, args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def send(client: Any, address: str, function: Callable[..., Any], *args: Any) -> Any:
    """Have only this worker call the function once. Return the Dask future.

    Args:
        function: importable under its name on the worker.
    """
    return client.submit(
        pickle.loads,
        pickle.dumps(Call(function, *args)),
        key=f"attune-{uuid.uuid4().hex}",
        workers=[address],
        pure=False,
    )


@dataclass(frozen=True, slots=True)
class Member:
    """A worker that takes part."""

    address: str
    threads: int
    about: Description

    @property
    def gpu_key(self) -> str:
        """Return a key that is equal for workers with comparable times: on one GPU, or predicted
        for one model."""
        return self.about.gpu if self.about.measures else self.about.device

    @property
    def max_calls(self) -> int:
        """Return how many calls it is sent at once: one that runs and one queued.

        With several threads only one, because it is not known which of two is running.
        """
        return 2 if self.threads == 1 else 1


class Members:
    """The members by address. `report` is called with a sentence about each excluded worker."""

    def __init__(
        self, client: Any, address: str, request: EvaluationRequest, report: Callable[[str], None]
    ) -> None:
        self._client = client
        self._address = address
        self._request = request
        self._report = report
        self._measuring = request.backend == "cuda"
        self._probes: dict[str, tuple[int, Any]] = {}  # threads, Dask future of a `Description`
        self._left_out: dict[str, str] = {}  # by address: reason
        self.by_address: dict[str, Member] = {}

    def wait_for_first(self, timeout_s: float) -> None:
        """Admit the workers that answer in time.

        Raises:
            ClusterError: there is no worker, or none can take part.
        """
        self._probe_new(self._workers())
        if not self._probes:
            raise ClusterError(
                f"The scheduler at {self._address} has no workers: start one for each GPU with "
                f"`CUDA_VISIBLE_DEVICES=N dask worker {self._address} --nthreads 1`.",
                code="scheduler_without_workers",
            )
        end = time.monotonic() + timeout_s
        candidates: list[Member] = []
        while self._probes and time.monotonic() < end:
            candidates += self._answered()
            time.sleep(_POLL_S)
        self._measuring = self._measuring or any(c.about.measures for c in candidates)
        self._admit(candidates)
        if not self.by_address:
            waiting = [f"{a} has not answered within {timeout_s:g} s." for a in self._probes]
            raise ClusterError(
                f"No worker at {self._address} can take part. "
                + " ".join([*self._left_out.values(), *waiting][:3])
            )

    def refresh(self) -> list[str]:
        """Admit new workers; return the addresses of lost members."""
        workers = self._workers()
        gone = [address for address in self.by_address if address not in workers]
        for known in (self.by_address, self._probes, self._left_out):
            for address in [a for a in known if a not in workers]:
                del known[address]
        self._probe_new(workers)
        self._admit(self._answered())
        return gone

    def leave_out(self, address: str, why: str) -> None:
        """Exclude a worker from the sweep."""
        self.by_address.pop(address, None)
        if address not in self._left_out:
            self._left_out[address] = f"The worker {address} is left out: {why}"
            self._report(self._left_out[address])

    def _workers(self) -> Mapping[str, Any]:
        workers: Mapping[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        return workers

    def _probe_new(self, workers: Mapping[str, Any]) -> None:
        """Ask each new worker for its description: GPU, versions, code."""
        ask = (cluster_worker.describe, cluster_worker.fingerprint(), self._request)
        known = {*self.by_address, *self._probes, *self._left_out}
        for address, worker in workers.items():
            if address not in known:
                probe = send(self._client, address, *ask)
                self._probes[address] = (int(worker["nthreads"]), probe)

    def _answered(self) -> list[Member]:
        """Return the workers that have described themselves since the last call."""
        candidates = []
        for address, (threads, probe) in list(self._probes.items()):
            if not probe.done():
                continue
            del self._probes[address]
            try:
                about = probe.result(timeout=_ASK_S)
            except (CancelledError, TimeoutError):
                # The worker or the scheduler is lost; a worker that still exists is asked again.
                continue
            except AttuneError as error:
                self.leave_out(address, str(error))
            # Without Attune, or with another version, any error may occur.
            except Exception as error:
                self.leave_out(
                    address,
                    f"it has no Attune of this version ({type(error).__name__}: {error}). Install "
                    "it there and start the worker again.",
                )
            else:
                candidates.append(Member(address, threads, about))
        return candidates

    def _admit(self, candidates: Iterable[Member]) -> None:
        for member in candidates:
            about = member.about
            if about.measures != self._measuring:
                what = "no GPU" if self._measuring else "a GPU"
                doing = "measures" if self._measuring else "predicts"
                self.leave_out(
                    member.address,
                    f"{about.host} has {what} that this sweep can use, but the sweep {doing}: "
                    "measurements and predictions are never mixed.",
                )
                continue
            self.by_address[member.address] = member
            self._report_unusual(member)

    def _report_unusual(self, member: Member) -> None:
        """Report versions that differ from this machine's, and workers that share a GPU."""
        about, here = member.about, cluster_worker.versions()
        if about.versions != here:
            self._report(f"The worker {member.address} runs {about.versions}; this machine {here}.")
        sharing = sum(other.about.gpu == about.gpu for other in self.by_address.values())
        if about.measures and sharing > 1:
            self._report(
                f"{sharing} workers on {about.host} use one GPU and wait for each other: start "
                "each with its own CUDA_VISIBLE_DEVICES."
            )
