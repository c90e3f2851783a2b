"""The plan: every decision for a model, with its reason and where it is written.

Levels: 1, names only (the JSON was read); 2, kernels and bytes (headers were read); 3, final (after
loading). ``Plan.to_json`` writes a stable schema, ``Plan.from_json`` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantdock.kernel import Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A change of scheme that the platform declares: what runs instead, why, what it costs."""

    source: str  # the scheme the checkpoint or the user asks for
    target: str  # the scheme that runs
    why: str
    accuracy: str


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """What one layer runs, and why. ``prefix`` is its name in the checkpoint.

    ``kernel`` is None for a layer without one: an unquantized layer, or one that nothing here can
    run (then ``rejected`` says why). Sizes are None where no header was read.
    """

    prefix: str
    kind: str  # schemes.Kind
    decision: str  # quantized, unquantized or error
    because: str
    source: str
    scheme: str | None = None  # as asked for; substitution says if another one runs
    kernel: str | None = None
    kernel_note: str = ""  # what the kernel says of itself, or what to do without one
    substitution: Swap | None = None
    rejected: tuple[Rejection, ...] = ()
    n: int | None = None  # output features
    k: int | None = None  # input features
    copies: int = 1  # matrices of that shape, such as those of all experts in one tensor
    bytes_stored: int | None = None  # in the files
    bytes_memory: int | None = None  # of codes, scales and bias once loaded
    bytes_per_token: int | None = None  # that attention keeps
    merged: str = ""  # the rows of a store that the layer shares with its siblings
    shard: str = ""  # the part that this rank holds, where ranks divide the layer; n, k are its
    warnings: tuple[str, ...] = ()
    todo: str = ""  # the remedy, of a layer that is refused
    promised: bool = False  # a name that was asked for says the scheme: nothing replaces it

    @property
    def lacks_kernel(self) -> bool:
        """Return whether the layer is quantized and nothing here can run it."""
        return self.decision == "quantized" and self.kernel is None

    def renamed(self, prefix: str) -> LayerPlan:
        """Return the same plan for another layer, fast: a large model has 50,000 of them."""
        other = object.__new__(LayerPlan)
        other.__dict__.update(self.__dict__, prefix=prefix)
        return other


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts and bytes of all layers; ``bytes_other`` are tensors that no layer here holds."""

    layers: int
    quantized: int
    unquantized: int
    errors: int
    without_kernel: int
    bytes_stored: int
    bytes_memory: int
    bytes_other: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every decision for one checkpoint on one platform.

    At level 1 there are no layers; ``rules`` says what layers of the usual names would be.
    ``attention`` says how keys and values are kept; the totals are those of ``layers``.
    With several ``ranks`` it is the plan of one of them.
    ``unsupported`` is None, or why this release cannot run the checkpoint at all.
    """

    level: int
    checkpoint: str
    model_type: str
    method: str  # canonical name, "none" without one
    method_source: str
    platform: str
    described: bool  # the platform was made up for planning; it is not this machine
    dtype: str  # of activations and unquantized weights
    layers: tuple[LayerPlan, ...] = ()
    rules: tuple[LayerPlan, ...] = ()
    attention: tuple[LayerPlan, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    ignore_matched: tuple[str, ...] = ()
    ignore_unmatched: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()  # tensors that no module of the model takes
    bytes_other: int = 0
    rank: int = 0
    ranks: int = 1
    unsupported: str | None = None

    @property
    def totals(self) -> Totals:
        """Return counts and bytes of all layers."""
        return Totals(
            layers=len(self.layers),
            quantized=sum(layer.decision == "quantized" for layer in self.layers),
            unquantized=sum(layer.decision == "unquantized" for layer in self.layers),
            errors=sum(layer.decision == "error" for layer in self.layers),
            without_kernel=sum(layer.lacks_kernel for layer in self.layers),
            bytes_stored=sum(layer.bytes_stored or 0 for layer in self.layers),
            bytes_memory=sum(layer.bytes_memory or 0 for layer in self.layers),
            bytes_other=self.bytes_other,
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the bytes of keys and values that one token takes in all attention layers."""
        return sum(layer.bytes_per_token or 0 for layer in self.attention)

    @property
    def decisions(self) -> tuple[LayerPlan, ...]:
        """Return the layers, or the rules where no header was read."""
        return self.layers or self.rules

    def summary(self) -> str:
        """Return one line: what was asked, where, how much of it is quantized.

        >>> Plan(level=1, checkpoint="x", model_type="llama", method="fp8", method_source="y",
        ...      platform="cpu:generic", described=False, dtype="bfloat16").summary()
        'fp8 on cpu:generic'
        """
        totals = self.totals
        text = f"{self.method} on {self.platform}"
        if self.ranks > 1:
            text += f", rank {self.rank} of {self.ranks}"
        if self.layers:
            stored, loaded = show_bytes(totals.bytes_stored), show_bytes(totals.bytes_memory)
            text += (
                f": {totals.quantized} of {totals.layers} layers quantized, "
                f"{stored} in files, {loaded} in memory"
            )
        for scheme in dict.fromkeys(layer.scheme for layer in self.attention if layer.scheme):
            text += f", KV cache in {scheme}"
        return text

    def to_json(self) -> str:
        """Return the plan as JSON; see plan_json for the schema."""
        from quantdock.plan.plan_json import plan_to_json

        return plan_to_json(self)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Return the plan that ``to_json`` wrote."""
        from quantdock.plan.plan_json import plan_from_json

        return plan_from_json(text)


def show_bytes(count: int) -> str:
    """Return a size for people.

    >>> show_bytes(512), show_bytes(20_000), show_bytes(3_500_000_000)
    ('512 B', '20.0 kB', '3.5 GB')
    """
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
