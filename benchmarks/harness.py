"""What every benchmark shares: results are checked first, then timed in turns.

Candidates take turns of a few calls each, round after round, so that a busy machine slows all of
them alike. The smallest time is the one that other work disturbed least; the median says how much
it did. Weights rotate over more memory than the caches hold, as the layers of a model do.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

ROTATED_BYTES = 128 << 20  # more than a last-level cache
READ_BYTES = 256 << 20
SECONDS = 0.3  # for one candidate
TURN = 4  # calls in a row
FEWEST, MOST = 1, 10  # turns of one candidate
SLOWEST = 0.5  # seconds of one call; a peer that takes longer is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to compute a result; ``run(i)`` uses the i-th copy of the weight."""

    name: str
    run: Callable[[int], Tensor]
    expected: Tensor  # of copy 0
    tolerance: float = 1e-2  # |result - expected| / |expected| (Frobenius)
    is_peer: bool = False  # not ours: where it cannot run here it is left out, and that is said


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one call."""

    smallest: float
    median: float


def copies_of(num_bytes: int) -> int:
    """Return how many copies of a weight of ``num_bytes`` do not fit into the caches together."""
    return max(2, -(-ROTATED_BYTES // num_bytes))


def compare(candidates: Sequence[Candidate]) -> dict[str, Timing]:
    """Return the time of each candidate that runs here.

    Raises:
        ValueError: a candidate's result is wrong.
    """
    candidates = [candidate for candidate in candidates if _runs(candidate)]
    turns = {}
    for candidate in candidates:
        _check(candidate)
        seconds = sum(_turn(candidate, 0))
        turns[candidate.name] = min(MOST, max(FEWEST, int(SECONDS / seconds)))
    times: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(max(turns.values())):
        for candidate in candidates:
            if number < turns[candidate.name]:
                times[candidate.name] += _turn(candidate, number * TURN)
    return {n: Timing(smallest=min(seen), median=median(seen)) for n, seen in times.items()}


def _runs(candidate: Candidate) -> bool:
    """Return whether ``candidate`` runs on this machine, and within SLOWEST; ours must."""
    if not candidate.is_peer:
        return True
    start = time.perf_counter()
    try:
        candidate.run(0)
    except RuntimeError:
        return False
    return time.perf_counter() - start < SLOWEST


def _turn(candidate: Candidate, first: int) -> list[float]:
    seconds = []
    for number in range(first, first + TURN):
        start = time.perf_counter()
        candidate.run(number)
        seconds.append(time.perf_counter() - start)
    return seconds


def _check(candidate: Candidate) -> None:
    result = candidate.run(0).double()
    expected = candidate.expected.double()
    error = float((result - expected).norm() / expected.norm())
    if not error <= candidate.tolerance:
        raise ValueError(
            f"{candidate.name} is wrong: its error is {error:.1e}, more than {candidate.tolerance}"
        )


def read_bandwidth() -> float:
    """Return the bytes a second at which this process reads memory, the best of five."""
    memory = torch.ones(READ_BYTES // 4)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        memory.sum()
        seconds.append(time.perf_counter() - start)
    return READ_BYTES / min(seconds)


def machine() -> str:
    """Return the processor, its vector instructions, torch and the number of threads."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text(errors="replace").splitlines()
        name = next((line.split(":")[1].strip() for line in lines if "model name" in line), name)
    return (
        f"{name}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} thread(s)"
    )
