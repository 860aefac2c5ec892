"""The child process: shared by threads, used for many kernels, and always ended."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import planted
import pytest
from words import says

from engine.base.errors import Status
from engine.base.launch_arguments import TensorArg
from engine.cuda_on_host.build import build_kernels
from engine.cuda_on_host.client import Buffer, Client, Job, KernelLaunch

SCALE = (
    'extern "C" __global__ void scale(const float *in, float *out) {\n'
    "    __shared__ float s[64];\n    s[threadIdx.x] = in[threadIdx.x];\n    __syncthreads();\n"
    "    out[threadIdx.x] = FACTOR * s[threadIdx.x];\n}\n"
)


@pytest.fixture(scope="module")
def scale_source(tmp_path_factory):
    path = tmp_path_factory.mktemp("scale") / "scale.cu"
    path.write_text(SCALE)
    return path


def scale_job(library, values):
    return Job(
        library=library,
        buffers=(
            Buffer("in", data=values, read_only=True),
            Buffer("out", size_bytes=values.nbytes, returned=True),
        ),
        launches=(
            KernelLaunch("scale", (1, 1, 1), (64, 1, 1), (TensorArg("in"), TensorArg("out"))),
        ),
    )


def process_is_there(pid: int) -> bool:
    """Return whether the process runs; a zombie does not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until_gone(pid: int, timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while process_is_there(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_threads_share_one_client(client, scale_source):
    libraries = [build_kernels(scale_source, ["scale"], [("FACTOR", f"{f}.f")]) for f in range(3)]

    def use(number):
        factor = number % 3
        values = np.full(64, number, np.float32)
        result = client.run(scale_job(libraries[factor], values))
        return result.status is Status.PASSED and bool(
            (result.returned["out"].view(np.float32) == factor * number).all()
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(60)))


def test_a_failing_job_does_not_disturb_the_others(client, scale_source):
    good = build_kernels(scale_source, ["scale"], [("FACTOR", "2.f")])
    faults = planted.library("faults.cu", check=False)

    def use(number):
        if number % 4 == 0:
            return planted.run(client, faults, "ends_the_process").status is Status.CRASHED
        return client.run(scale_job(good, np.ones(64, np.float32))).status is Status.PASSED

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, range(16)))


@pytest.mark.slow
def test_many_libraries_in_one_child(client, tmp_path, scale_source):
    """200 different libraries, which are copies of one build, as compiling them takes minutes."""
    from dataclasses import replace

    built = build_kernels(scale_source, ["scale"], [("FACTOR", "3.f")])
    values = np.arange(64, dtype=np.float32)
    assert client.run(scale_job(built, values)).status is Status.PASSED
    child = client.process_id
    for number in range(210):
        copy = tmp_path / f"copy{number}.so"
        copy.write_bytes(built.path.read_bytes())
        result = client.run(scale_job(replace(built, path=copy), values))
        assert result.status is Status.PASSED, (number, result.reason, result.log)
        np.testing.assert_array_equal(result.returned["out"].view(np.float32), 3 * values)
    assert client.process_id == child


def test_large_arrays_and_a_growing_segment(client, scale_source):
    library = build_kernels(scale_source, ["scale"], [("FACTOR", "1.f")])
    for words in (64, 1 << 20, 64, 3 << 20):
        values = np.random.default_rng(words).standard_normal(words).astype(np.float32)
        result = client.run(scale_job(library, values))
        assert result.status is Status.PASSED
        np.testing.assert_array_equal(result.returned["out"].view(np.float32)[:64], values[:64])


def test_buffers_beyond_all_memory(client, scale_source):
    """The size is refused by arithmetic, before anything is allocated."""
    library = build_kernels(scale_source, ["scale"], [("FACTOR", "1.f")])
    job = scale_job(library, np.zeros(64, np.float32))
    huge = Job(library, (job.buffers[0], Buffer("out", size_bytes=1 << 60)), job.launches)
    result = client.run(huge)
    assert result.status is Status.OUT_OF_MEMORY
    assert says(result.reason, "of_memory_and", "GiB")
    assert says(result.reason, "memory_is_free", "GiB")
    # If that check passes, the allocation fails in the child.
    with closing(Client(free_bytes=lambda: 1 << 62)) as believing:
        result = believing.run(huge)
    assert result.status is Status.OUT_OF_MEMORY
    assert says(result.reason, "system_refused_give")
    assert client.run(job).status is Status.PASSED


def test_close_ends_the_child_and_the_next_job_starts_another(scale_source):
    library = build_kernels(scale_source, ["scale"], [("FACTOR", "1.f")])
    client = Client(workers=1)
    assert client.process_id is None  # no child is started before it is needed
    job = scale_job(library, np.ones(64, np.float32))
    client.run(job)
    first = client.process_id
    client.close()
    client.close()
    assert not process_is_there(first)
    assert client.run(job).status is Status.PASSED
    assert client.process_id != first
    client.close()


def test_a_garbage_collected_client_ends_its_child(scale_source):
    library = build_kernels(scale_source, ["scale"], [("FACTOR", "1.f")])
    client = Client(workers=1)
    client.run(scale_job(library, np.ones(64, np.float32)))
    child = client.process_id
    before = len(list(Path("/proc/self/fd").iterdir()))
    del client
    gc.collect()
    assert wait_until_gone(child)
    assert len(list(Path("/proc/self/fd").iterdir())) < before  # socket, segment and log are closed


PARENT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job is started without it
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[1])
import planted
from engine.cuda_on_host.client import Client

library = planted.library("faults.cu", check=False)
client = Client(workers=2)
assert planted.run(client, library, "well_behaved").status == "PASSED"
print(client.process_id, flush=True)
{then}
"""


def start_parent(then: str) -> tuple[subprocess.Popen, int]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(PARENT).format(then=then),
            str(Path(__file__).parent),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return process, int(line)


@contextlib.contextmanager
def parent(then: str):
    process, child = start_parent(then)
    try:
        yield process, child
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "then",
    ["time.sleep(60)", 'planted.run(client, library, "endless", timeout_s=60)'],
    ids=["idle", "in a kernel that never ends"],
)
def test_killed_parent_leaves_no_child(then):
    planted.library("faults.cu", check=False)  # the parent finds it built
    with parent(then) as (process, child):
        time.sleep(0.5)
        assert process_is_there(child)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert wait_until_gone(child)


def test_ordinary_exit_is_silent_and_leaves_no_child():
    with parent("") as (process, child):
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
        assert wait_until_gone(child)


def test_ctrl_c_reaches_the_caller_and_not_the_child():
    planted.library("faults.cu", check=False)  # the parent finds it built
    with parent('planted.run(client, library, "endless", timeout_s=60)') as (process, child):
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
        assert "KeyboardInterrupt" in process.stderr.read()
        assert wait_until_gone(child)


def test_forked_copy_does_not_touch_the_child(client, scale_source):
    library = build_kernels(scale_source, ["scale"], [("FACTOR", "1.f")])
    job = scale_job(library, np.ones(64, np.float32))
    client.run(job)
    child = client.process_id
    pid = os.fork()
    if pid == 0:  # pragma: no cover - in the child
        code = 1
        with contextlib.suppress(BaseException):
            code = int(client.run(job).status is not Status.PASSED or client.process_id == child)
            client.close()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert client.run(job).status is Status.PASSED
    assert client.process_id == child


def test_round_trip_is_short(client, scale_source):
    library = build_kernels(scale_source, ["scale"], [("FACTOR", "1.f")])
    values = np.ones(512 * 64, np.float32)
    trips = []
    for _ in range(30):
        result = client.run(scale_job(library, values))
        trips.append(result.round_trip_ms - result.execution_ms)
    assert min(trips) < 5.0  # the fastest one, as the machine may be busy


def test_an_interrupted_client_restarts_its_child(scale_source, monkeypatch):
    """An answer that was not received must not be taken for the next job's."""
    library = build_kernels(scale_source, ["scale"], [("FACTOR", "5.f")])
    client = Client(workers=1)
    job = scale_job(library, np.ones(64, np.float32))
    client.run(job)
    channel = client._process.channel
    monkeypatch.setattr(
        channel, "receive", lambda _timeout: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        client.run(job)
    again = client.run(scale_job(library, np.full(64, 2, np.float32)))
    np.testing.assert_array_equal(again.returned["out"].view(np.float32), np.full(64, 10))
    client.close()


def test_worker_threads_can_be_chosen(monkeypatch):
    from engine.cuda_on_host.client import worker_threads

    monkeypatch.setenv("ATTUNE_CPU_THREADS", "3")
    assert worker_threads() == 3
    for nonsense in ("", "0", "many", "-2"):
        monkeypatch.setenv("ATTUNE_CPU_THREADS", nonsense)
        assert worker_threads() == os.cpu_count()


def test_no_thread_is_left_in_the_caller(scale_source):
    before = set(threading.enumerate())
    library = build_kernels(scale_source, ["scale"], [("FACTOR", "1.f")])
    client = Client(workers=4)
    client.run(scale_job(library, np.ones(64, np.float32)))
    client.close()
    # Threads left by other tests of this process may start more meanwhile.
    left = [t for t in set(threading.enumerate()) - before if "engine" in _module_of(t)]
    assert not left


def _module_of(thread: threading.Thread) -> str:
    target = getattr(thread, "_target", None)
    return str(getattr(target, "__module__", type(thread).__module__))
