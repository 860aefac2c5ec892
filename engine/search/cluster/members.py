"""The workers of a Dask cluster that take part in a sweep: who they are, who joins, who is gone.

A worker takes part once it has described itself and its sources are this machine's: results of
different sources are never mixed. Where one worker measures on a GPU, those that could only predict
stay out.
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from engine.errors import AttuneError, ClusterError
from engine.pipeline.request import EvaluationRequest
from engine.search.cluster import worker as cluster_worker
from engine.search.cluster.worker import Description

_POLL_S = 0.05
_ASK_S = 10.0  # for an answer that is there already to come over


class Call:
    """Unpickling it calls the function.

    So what is sent is one of the standard library's functions and some bytes, and the scheduler,
    which unpickles what is sent too, needs no Attune.
    """

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = (function, args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def send(client: Any, address: str, function: Callable[..., Any], *args: Any) -> Any:
    """Have this worker, and no other, call the function once; the Dask future of what it returns.

    Args:
        function: known by its name on the worker.
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
    def lane(self) -> str:
        """Whose results can be compared with each other: one GPU's, or one GPU's predictions."""
        return self.about.gpu if self.about.measures else self.about.device


class Members:
    """Asks the scheduler who is there. `say` gets a sentence about whoever is left out."""

    def __init__(
        self, client: Any, address: str, request: EvaluationRequest, say: Callable[[str], None]
    ) -> None:
        self._client = client
        self._address = address
        self._request = request
        self._say = say
        self._measuring = request.backend == "cuda"
        self._probes: dict[str, tuple[int, Any]] = {}  # threads, future
        self._left_out: dict[str, str] = {}  # by address: why
        self.by_address: dict[str, Member] = {}

    def gather(self, timeout_s: float) -> None:
        """The first round: everybody who is there and answers in time.

        Raises:
            ClusterError: nobody is there, or nobody who will do.
        """
        self._notice(self._workers())
        if not self._probes:
            raise ClusterError(
                f"The scheduler at {self._address} has no workers: start one for each GPU with "
                f"`CUDA_VISIBLE_DEVICES=N dask worker {self._address} --nthreads 1`."
            )
        end = time.monotonic() + timeout_s
        answers: dict[str, tuple[int, Description]] = {}
        while self._probes and time.monotonic() < end:
            answers |= self._answers()
            time.sleep(_POLL_S)
        self._measuring = self._measuring or any(about.measures for _, about in answers.values())
        self._admit(answers)
        if not self.by_address:
            waiting = [f"{a} has not answered within {timeout_s:g} s." for a in self._probes]
            raise ClusterError(
                f"No worker at {self._address} can take part. "
                + " ".join([*self._left_out.values(), *waiting][:3])
            )

    def refresh(self) -> list[str]:
        """Look who has come; the addresses of the members that are gone."""
        there = self._workers()
        gone = [address for address in self.by_address if address not in there]
        for address in gone:
            del self.by_address[address]
        for known in (self._probes, self._left_out):
            for address in [a for a in known if a not in there]:
                del known[address]
        self._notice(there)
        self._admit(self._answers())
        return gone

    def leave_out(self, address: str, why: str) -> None:
        """This worker takes part no more."""
        self.by_address.pop(address, None)
        if address not in self._left_out:
            self._left_out[address] = f"The worker {address} is left out: {why}"
            self._say(self._left_out[address])

    def _workers(self) -> Mapping[str, Any]:
        workers: Mapping[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        return workers

    def _notice(self, there: Mapping[str, Any]) -> None:
        for address, worker in there.items():
            known = (self.by_address, self._probes, self._left_out)
            if not any(address in group for group in known):
                ask = (cluster_worker.describe, cluster_worker.fingerprint(), self._request)
                probe = send(self._client, address, *ask)
                self._probes[address] = (int(worker["nthreads"]), probe)

    def _answers(self) -> dict[str, tuple[int, Description]]:
        """Of the workers asked, those that have answered since."""
        found: dict[str, tuple[int, Description]] = {}
        for address, (threads, probe) in list(self._probes.items()):
            if not probe.done():
                continue
            del self._probes[address]
            try:
                found[address] = (threads, probe.result(timeout=_ASK_S))
            except (CancelledError, TimeoutError):
                continue  # it is gone, or the scheduler: whoever is there is asked again
            except AttuneError as error:
                self.leave_out(address, str(error))
            except Exception as error:  # without Attune, or with another, it fails in many ways
                self.leave_out(
                    address,
                    f"it has no Attune of this version ({type(error).__name__}: {error}). Install "
                    "it there and start the worker again.",
                )
        return found

    def _admit(self, answers: Mapping[str, tuple[int, Description]]) -> None:
        for address, (threads, about) in answers.items():
            if about.measures != self._measuring:
                what = "no GPU" if self._measuring else "a GPU"
                doing = "measures" if self._measuring else "predicts"
                self.leave_out(
                    address,
                    f"{about.host} has {what} there for this sweep, which {doing}; measurements "
                    "and predictions are never mixed.",
                )
                continue
            self.by_address[address] = Member(address, threads, about)
            self._mention(address, about)

    def _mention(self, address: str, about: Description) -> None:
        here = cluster_worker.versions()
        if about.versions != here:
            self._say(f"The worker {address} runs {about.versions}; this machine {here}.")
        sharing = sum(member.about.gpu == about.gpu for member in self.by_address.values())
        if about.measures and sharing > 1:
            self._say(
                f"{sharing} workers on {about.host} use one GPU and wait for each other: start "
                "each with its own CUDA_VISIBLE_DEVICES."
            )
