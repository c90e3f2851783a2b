"""A plan for people: rich text that fits the terminal it is printed on, from 80 columns up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from quantdock.errors import few
from quantdock.plan.attention_section import attention_sections
from quantdock.plan.grouping import LayerGroup, group_layers
from quantdock.plan.plan import LayerPlan, Plan, show_bytes

_LEVELS = {
    1: "from names alone: no weights were looked at",
    2: "from the headers of the files: nothing was loaded",
    3: "as loaded",
}
_STYLES = {"quantized": "bold green", "unquantized": "bold", "error": "bold red"}


def render(plan: Plan, console: Console | None = None) -> None:
    """Print ``plan``: what it is about, its layers by decision, then all that needs attention."""
    console = console or Console()
    _facts(console, _headline(plan))
    if plan.unsupported:
        console.print(Text(plan.unsupported, style="yellow"))
    if plan.rules:
        console.print(Text("\nLayers of these names would be:", style="italic"))
    groups = group_layers(plan.decisions)
    for section in _sections(groups):
        _section(console, section)
    for title, facts in attention_sections(plan.attention):
        console.print(Text("\nKV cache", style="bold").append(f"  {title}", style="default"))
        _facts(console, facts, indent=2)
    _remarks(console, plan, {group.because for group in groups})
    _rejections(console, plan.decisions)


def render_remarks(plan: Plan, console: Console) -> None:
    """Print what needs attention, without the layers: changes of scheme, warnings, notes."""
    _list(console, "note", _swaps(plan.layers), "cyan")
    _remarks(console, plan)


def _remarks(console: Console, plan: Plan, said: Collection[str] = ()) -> None:
    """Print warnings, then the notes that are not ``said`` yet, then what was not used."""
    _list(console, "warning", plan.warnings, "yellow")
    _list(console, "note", (note for note in plan.notes if note not in said), "cyan")
    _entries(console, plan)


def _swaps(layers: Iterable[LayerPlan]) -> Iterator[str]:
    """Yield what runs instead of the scheme that was asked for, and why."""
    for swap, count in Counter(layer.substitution for layer in layers).items():
        if swap is not None:
            layers_run = "layer runs" if count == 1 else "layers run"
            yield f"{count:,} {layers_run} as {swap.target} instead of {swap.source}: {swap.why}"


def _headline(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what stands at the head, as name and text."""
    model = f" ({plan.model_type})" if plan.model_type else ""
    yield "checkpoint", f"{plan.checkpoint}{model}"
    yield "method", f"{plan.method}: {plan.method_source}"
    described = ", described: not this machine" if plan.described else ""
    yield "platform", f"{plan.platform}{described}; {plan.dtype} activations"
    yield "plan", _LEVELS[plan.level]
    if plan.ranks > 1:
        yield "rank", f"{plan.rank} of {plan.ranks}; what is divided shows this rank's part"
    if plan.layers:
        totals = plan.totals
        lacking = f", {totals.without_kernel:,} of them without a kernel here"
        yield (
            "layers",
            f"{totals.quantized:,} of {totals.layers:,} quantized"
            f"{lacking if totals.without_kernel else ''}; "
            f"{show_bytes(totals.bytes_stored)} in files, "
            f"{show_bytes(totals.bytes_memory)} in memory",
        )
        yield "other", f"{show_bytes(totals.bytes_other)} of norms and what else is no layer"


def _facts(console: Console, facts: Iterable[tuple[str, str]], indent: int = 0) -> None:
    """Print names in one column and what they are in the next."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, min_width=8)
    grid.add_column(overflow="fold")
    for name, text in facts:
        grid.add_row(name, Text(text))
    console.print(Padding(grid, (0, 0, 0, indent)))


def _sections(groups: Sequence[LayerGroup]) -> Iterator[list[LayerGroup]]:
    """Yield the groups that run the same for the same reason, the largest share first."""
    sections: dict[object, list[LayerGroup]] = {}
    for group in groups:
        layer = group.example
        key = (
            layer.decision,
            layer.scheme,
            layer.kernel,
            layer.kernel_note,
            layer.substitution,
            group.because,
            layer.todo,
        )
        sections.setdefault(key, []).append(group)
    order = {"error": 0, "quantized": 1, "unquantized": 2}
    yield from sorted(
        sections.values(),
        key=lambda section: (
            order[section[0].example.decision],
            -sum(group.bytes_stored for group in section),
        ),
    )


def _section(console: Console, groups: list[LayerGroup]) -> None:
    layer = groups[0].example
    count = sum(group.count for group in groups)
    title = Text(f"\n{count:,} {layer.decision}", style=_STYLES[layer.decision])
    if layer.scheme:
        title.append(f"  {layer.scheme}", style="default")
    console.print(title)
    sources = dict.fromkeys(group.source for group in groups)
    _facts(console, _outcome(groups[0], sources), indent=2)
    console.print(Padding(_layers(groups, console.width - 2, len(sources) > 1), (0, 0, 0, 2)))


def _outcome(group: LayerGroup, sources: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield what the layers of a section run, and why."""
    layer, swap = group.example, group.example.substitution
    if swap:
        yield "runs as", f"{swap.target}: {swap.why}"
        yield "accuracy", swap.accuracy
    if layer.lacks_kernel:
        yield "kernel", "none"
        yield "remedy", layer.kernel_note
    elif layer.kernel:
        note = f" ({layer.kernel_note})" if layer.kernel_note else ""
        yield "kernel", f"{layer.kernel}{note}"
    where = list(sources)
    yield "why", f"{group.because} ({where[0]})" if len(where) == 1 else group.because
    if layer.todo:
        yield "remedy", layer.todo


def _layers(groups: list[LayerGroup], width: int, with_source: bool) -> Table:
    """Return the layers of a section, a row for each pattern."""
    same = all(group.bytes_stored == group.bytes_memory for group in groups)
    sized = any(group.example.n is not None for group in groups)
    numbers = [_numbers(group, same) if sized else () for group in groups]
    heads = ("count", "N x K", "bytes") if same else ("count", "N x K", "files", "memory")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("layer", no_wrap=True)
    for head, cells in zip(heads, zip(*numbers, strict=True), strict=False):
        table.add_column(head, justify="right", no_wrap=True)
        width -= 2 + max(len(cell) for cell in (*cells, head))
    for group, cells in zip(groups, numbers, strict=True):
        name = Text(_break_at_dots(group.pattern, width - 2))
        if with_source:
            name.append(f"\n  {group.source}", style="dim")
        for part in (group.example.shard, group.example.merged):
            if part:
                name.append(f"\n  {part}", style="dim")
        table.add_row(name, *cells)
    return table


def _numbers(group: LayerGroup, same: bool) -> tuple[str, ...]:
    layer = group.example
    stack = f"{layer.copies} x " if layer.copies > 1 else ""
    shape = f"{stack}{layer.n} x {layer.k}" if layer.n is not None else ""
    sizes = (group.bytes_memory,) if same else (group.bytes_stored, group.bytes_memory)
    return (f"{group.count:,}", shape, *(show_bytes(size) for size in sizes))


def _break_at_dots(name: str, width: int) -> str:
    """Return ``name`` in lines of at most ``width`` where its components allow it."""
    lines = [""]
    for part in name.split("."):
        piece = f".{part}" if lines != [""] else part
        if len(lines[-1]) + len(piece) > width and lines[-1]:
            lines.append("  ")
        lines[-1] += piece
    return "\n".join(lines)


def _list(console: Console, word: str, texts: Iterable[str], style: str) -> None:
    for index, text in enumerate(texts):
        console.print(Text(f"{'' if index else chr(10)}{word}: ", style=style) + Text(text))


def _entries(console: Console, plan: Plan) -> None:
    """Print what ignore lists and the files name that no layer took."""
    for title, names in (
        ("entries that match no layer", plan.ignore_unmatched),
        ("tensors not used", plan.unused),
    ):
        if names:
            _list(console, title, [few(names)], "cyan")


def _rejections(console: Console, layers: Iterable[LayerPlan]) -> None:
    """Print every kernel that was not taken, with every reason, once for all layers alike."""
    alike: dict[int, list[LayerPlan]] = {}  # of 100,000 layers most share one tuple
    for layer in layers:
        alike.setdefault(id(layer.rejected), []).append(layer)
    counts: Counter[tuple[str, str]] = Counter()
    for members in alike.values():
        for rejection in members[0].rejected:
            for reason in rejection.reasons:
                counts[rejection.kernel, reason] += len(members)
    if not counts:
        return
    console.print(Text("\nkernels not taken", style="bold"))
    _facts(
        console,
        (
            (kernel, f"{reason} ({count:,} layer{'s' if count > 1 else ''})")
            for (kernel, reason), count in counts.items()
        ),
        indent=2,
    )
