"""CudaTuner: measures ways for layers on this GPU, and stores them in the user's table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from quantdock import tuner
from quantdock.platform import Platform
from quantdock.problem import Problem
from quantdock_cuda import libraries, tables
from quantdock_cuda.device import Device, device_of
from quantdock_cuda.execution import execution, form_of
from quantdock_cuda.library import Layer
from quantdock_cuda.tables import Timed, Way
from quantdock_cuda.tiling import MOST_ROWS, bucket, names_of, ways
from quantdock_cuda.tuning import candidates
from quantdock_cuda.tuning.compiling import Job, compiled
from quantdock_cuda.tuning.operands import Operands
from quantdock_cuda.tuning.search import Found, search
from quantdock_cuda.tuning.timing import Pool
from quantdock_cuda.unpacked import UNPACK, unpacks
from quantdock_triton.tile import Form, Tile

KERNELS = frozenset({"cuda_fp8", "cuda_int8", "cuda_w8a16"})
_POOL_BYTES = 1 << 29


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One product to measure: the layer's form and shape, and a number of rows."""

    problem: Problem
    form: Form
    one_scale: bool
    n: int
    k: int
    rows: int

    @property
    def name(self) -> str:
        """Return the name of the form under which tables list it."""
        return names_of(self.form, self.one_scale)[0]

    def ways(self, device: Device, thorough: bool) -> list[Way]:
        """Return all that is to be measured: what is taken now first, then tiles and libraries."""
        layer = Layer(
            form=self.form,
            features=device.features,
            n=self.n,
            k=self.k,
            scales=(self.one_scale, self.one_scale),
            dtype=torch.bfloat16,
            bias_dtype=None,
        )
        find = candidates.tiles if thorough else candidates.likely
        tried = find(self.form, device, self.rows, self.n, self.k)
        taken = ways(self.form, device, self.n, self.k, self.rows, self.one_scale)
        names = [n for n in libraries.LIBRARIES if self._may_call(n, layer)]
        names += [UNPACK] if unpacks(self.form, device, self.n, self.k, self.rows) else []
        found = dict.fromkeys((*taken, *tried, *names))
        return [way for way in found if isinstance(way, Tile) or way in names]

    def _may_call(self, name: str, layer: Layer) -> bool:
        if self.form.weight_only:
            return name == libraries.LIBRARY
        # torch multiplies a row of x by blocks not at all, and is slow at few.
        is_slow = name == libraries.LIBRARY and self.form.is_grouped and self.rows < 16
        return not is_slow and libraries.product_for(name, layer) is not None


class CudaTuner:
    """Keeps ``quantdock.tuner.Tuner`` for the GPU that torch takes first."""

    rows = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)

    def __init__(self, platform: Platform) -> None:
        self.device = device_of(torch.cuda.current_device())

    def why_not(self, kernel: str, problem: Problem) -> str:
        """Return why there is nothing to choose for ``problem`` on ``kernel``; empty: there is."""
        return "" if kernel in KERNELS else f"the tiles of {kernel} follow from sizes alone"

    def plan(
        self, problems: Sequence[Problem], rows: Sequence[int], *, thorough: bool, again: bool
    ) -> CudaRun:
        """Return what is to be measured: each shape of a form, and each number of rows, once."""
        found: dict[tuple[object, ...], Case] = {}
        for problem in problems:
            for m in rows:
                case = case_of(problem, min(bucket(m), MOST_ROWS))
                found.setdefault((case.name, case.n, case.k, case.rows), case)
        known = {} if again else tables.measured(self.device)
        cases = [case for case in found.values() if not _is_known(known, case)]
        return CudaRun(self.device, cases, len(found) - len(cases), thorough)

    def state(self) -> str:
        """Return one sentence: what is known of this device, and where that is stored."""
        path = tables.path_of(self.device)
        own = sum(len(shapes) for shapes in tables.measured(self.device).values())
        ours = sum(len(shapes) for shapes in tables.shipped(self.device.arch).values())
        if own:
            return f"ways of {_shapes(own)} were measured on this {self.device.name} ({path})"
        if tables.outdated(self.device):
            return (
                f"ways that were measured on this {self.device.name} are of other kernels and not "
                "used; `quantdock tune` measures anew"
            )
        if ours:
            return f"ways of {_shapes(ours)} come with the plugin for {self.device.arch}"
        return f"no ways were measured on {self.device.arch}; `quantdock tune` does"


class CudaRun:
    """Keeps ``quantdock.tuner.TuningRun``."""

    def __init__(
        self, device: Device, cases: Sequence[Case], num_known: int, thorough: bool
    ) -> None:
        self._device, self._cases = device, cases
        self._ways = [case.ways(device, thorough) for case in cases]
        jobs: dict[Job, None] = {}
        for case, tried in zip(cases, self._ways, strict=True):
            jobs.update(dict.fromkeys(_jobs(case, tried)))
        self._jobs = list(jobs)
        self.num_cases, self.num_known = len(cases), num_known
        self.num_steps = len(self._jobs) + sum(len(tried) for tried in self._ways)

    def measure(self, advance: Callable[[int], object]) -> Iterator[tuner.Measured]:
        """Compile every tile, then yield each case once it is stored."""
        for _ in compiled(self._jobs):
            advance(1)
        largest = max((case.n * case.k for case in self._cases), default=0)
        pool = Pool(max(_POOL_BYTES, largest))
        try:
            for case, tried in zip(self._cases, self._ways, strict=True):
                yield self._measured(case, tried, pool, advance)
        finally:
            ways.cache_clear()
            execution.cache_clear()

    def _measured(
        self, case: Case, tried: Sequence[Way], pool: Pool, advance: Callable[[int], object]
    ) -> tuner.Measured:
        try:
            found = self._search(case, tried, pool, advance)
        except RuntimeError as error:  # too little memory is one, too
            return _told(case, None, None, 0, (" ".join(str(error).split()),))
        tables.store(self._device, case.name, (case.n, case.k), case.rows, found.best)
        taken = next((way for way in tried if way in found.times), None)
        before = None if taken is None else (found.times[taken], taken)
        return _told(case, before, found.best[0], len(found.times), found.failures)

    def _search(
        self, case: Case, tried: Sequence[Way], pool: Pool, advance: Callable[[int], object]
    ) -> Found:
        operands = Operands(case.form, case.rows, case.n, case.k, pool, one_scale=case.one_scale)
        return search(operands, tried, advance)


def _told(
    case: Case,
    before: Timed | None,
    after: Timed | None,
    num_tried: int,
    remarks: Sequence[str],
) -> tuner.Measured:
    old, new = (
        None if timed is None else tuner.Timed(way=str(timed[1]), us=timed[0])
        for timed in (before, after)
    )
    return tuner.Measured(
        problem=case.problem,
        rows=case.rows,
        before=old,
        after=new,
        num_tried=num_tried,
        remarks=tuple(f"{case.n} x {case.k}, {case.rows} rows: {text}" for text in remarks),
    )


def case_of(problem: Problem, rows: int) -> Case:
    """Return what is measured of a layer for ``rows`` rows of x."""
    n, k, scheme = problem.n, problem.k, problem.scheme
    assert n is not None and k is not None, "a layer to be measured has a shape"
    height, shards = scheme.weight.rows, problem.shards or (n,)
    # Scales of whole shards become one a row where there are several.
    is_one = height is None and len(shards) == 1
    scale_rows = 1 if is_one else n if height is None else sum(-(-s // height) for s in shards)
    form = form_of(scheme, scale_rows, n)
    one_for_x = scheme.activation is not None and scheme.activation.granularity == "tensor"
    one_scale = is_one and one_for_x and form == Form()
    return Case(problem=problem, form=form, one_scale=one_scale, n=n, k=k, rows=rows)


def _shapes(count: int) -> str:
    return "1 layer shape" if count == 1 else f"{count} layer shapes"


def _is_known(known: tables.Table, case: Case) -> bool:
    return case.rows in known.get(case.name, {}).get((case.n, case.k), {})


def _jobs(case: Case, tried: Sequence[Way]) -> Iterator[Job]:
    for way in tried:
        if isinstance(way, Tile):
            is_ragged = case.k % case.form.block_k(way.k) > 0
            yield case.form, replace(way, parts=min(way.parts, 2)), is_ragged
