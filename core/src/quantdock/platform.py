"""Platform: a device family and its facts, as frozen data that any machine can make up.

>>> Platform(name="cuda", arch="sm_90", device="cuda", features=frozenset({"fp8_mma"}))
Platform(cuda:sm_90)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quantdock.fields import require_right, wrong_kind, wrong_tuple, wrong_words
from quantdock.formats import FLOATS


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Platform:
    """One device family at one architecture.

    Rules about kernels read ``features`` (what the device can do), never the name or the arch.
    """

    name: str  # the family: cpu, cuda, rocm ...; what plugins and users say
    arch: str  # within the family: sm_90, gfx942 ...
    device: str  # torch's device type that its tensors live on
    features: frozenset[str] = frozenset()
    dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32")  # activations, best first
    memory_bytes: int | None = None
    # Names this platform can run of those every QuantDock knows; None: no limit of its own.
    builtin_methods: frozenset[str] | None = None
    described: bool = False  # made from a name for planning; not found on this machine
    automatic: bool = field(default=False, compare=False)  # the best one here; nobody named it

    def __post_init__(self) -> None:
        closed = self.builtin_methods
        wrong = wrong_words("features", self.features) + wrong_tuple("dtypes", self.dtypes, str)
        wrong += wrong_words("dtypes", frozenset(self.dtypes), FLOATS)
        wrong += wrong_words("builtin_methods", closed) if closed is not None else []
        require_right(self, wrong)

    @property
    def is_accelerator(self) -> bool:
        """Return whether tensors live off the CPU."""
        return self.device != "cpu"

    def __str__(self) -> str:
        return f"{self.name}:{self.arch}"

    def __repr__(self) -> str:
        return f"Platform({self})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """Why a probe found no device of its family."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformEntry:
    """What a plugin says of a platform it owns, before anything is probed.

    ``probe`` names a function ``(index: int) -> Platform | Absent`` that looks at the machine;
    ``describe`` a function ``(arch: str) -> Platform`` that looks at nothing. Both are
    ``"module:function"`` strings, imported when first called.
    """

    name: str
    rank: int  # automatic choice takes the highest rank whose probe succeeds
    probe: str
    describe: str
    archs: tuple[str, ...]  # what describe accepts, the usual one first

    def __post_init__(self) -> None:
        targets = ("name", "probe", "describe")
        wrong = [told for name in targets for told in wrong_kind(name, getattr(self, name), str)]
        wrong += wrong_kind("rank", self.rank, int) + wrong_tuple("archs", self.archs, str)
        require_right(self, wrong)
