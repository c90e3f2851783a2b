"""A decoder of real size, end to end, by how its weights are kept.

Run on the GPU: ``python -m benchmarks.cuda.generate [--layers 32] [--folder FOLDER] [NAME ...]``.
Weights are random and written to the folder once (16 GB for all layers, and a half or a quarter for
each that is stored quantized; a folder in memory spares the disk). Decoding is greedy, with
transformers' static cache; with a CUDA graph the whole step is captured, the choice of the token
included. With ``--results FILE`` rows are kept, and later runs add theirs: a machine that is lent
for minutes measures a few at a time. ``--show`` prints what a file has, and needs no GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
import triton

from benchmarks.cuda.decoder import LAYERS, PLAIN, checkpoint
from benchmarks.cuda.decoding import BATCHES, PREFILL, PROMPT, rates
from benchmarks.cuda.ways import WAYS, load

GIB = 1 << 30
KEYS = ("load s", "load peak GiB", "kept GiB", f"prefill {PREFILL} tok/s",
        *(f"batch {b}{how} tok/s" for b in BATCHES for how in ("", ", graph")),
        "run peak GiB", "logits off")  # fmt: skip
Row = dict[str, Any]


@torch.no_grad()
def measure(name: str, folder: Path, layers: int) -> Row:
    """Return a row of the table.

    The logits of a prompt are kept in the folder by the unquantized model, for those after it.
    """
    way = WAYS[name]
    source = checkpoint(folder, way.stored, layers)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()  # by rows before, such as workspaces
    start = time.perf_counter()
    model = load(way, source)
    torch.cuda.synchronize()
    cells: list[Any] = [time.perf_counter() - start]
    gc.collect()
    peak, kept = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    cells += [(peak - before) / GIB, (kept - before) / GIB]
    prompt = torch.arange(PROMPT, device="cuda")[None]
    logits = model(input_ids=prompt).logits[0].float()
    cells += rates(model)
    cells.append((torch.cuda.max_memory_allocated() - before) / GIB)
    saved = folder / f"logits-{layers}.pt"
    if name == PLAIN:
        torch.save(logits, saved)
    plain = torch.load(saved, map_location="cuda") if saved.exists() and name != PLAIN else None
    cells.append(None if plain is None else float((logits - plain).norm() / plain.norm()))
    return dict(zip(KEYS, cells, strict=True))


def show(value: Any) -> str:
    """Return a cell of the table."""
    if isinstance(value, float):
        return f"{value:.3f}" if value < 1 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
    return "-" if value is None else str(value)


def line(name: str, row: Row) -> str:
    """Return a line of the table; a row may say why there are no figures."""
    if "why" in row:
        return f"| {name} | {row['why']} |"
    return f"| {name} | {' | '.join(show(row.get(key)) for key in KEYS)} |"


def table(rows: Mapping[str, Row]) -> Iterable[str]:
    """Yield the lines of the table, in the order of WAYS."""
    yield f"| weights | {' | '.join(KEYS)} |"
    yield f"|{'---|' * (len(KEYS) + 1)}"
    yield from (line(name, rows[name]) for name in WAYS if name in rows)


def attempt(name: str, folder: Path, layers: int) -> Row:
    """Return a row, or why there is none: one way's failure must not cost the others their rows."""
    if missing := WAYS[name].missing():
        return {"why": f"needs {', '.join(missing)}, not installed"}
    try:
        return measure(name, folder, layers)
    except Exception as error:
        traceback.print_exc()
        return {"why": f"{type(error).__name__}: {(str(error).strip() or '-').splitlines()[0]}"}


def main() -> None:
    """Print a table, a row for each way; a way of ours that failed is an error."""
    asked = _asked()
    rows: dict[str, Row] = {}
    if asked.results is not None and asked.results.exists():
        rows = json.loads(asked.results.read_text())
    if not asked.show:
        versions = ", ".join(f"{m.__name__} {m.__version__}" for m in (torch, triton, transformers))
        print(f"{torch.cuda.get_device_name()}, {versions}, {asked.layers} layers", flush=True)
        for name in asked.names or WAYS:
            rows[name] = attempt(name, asked.folder, asked.layers)
            print(line(name, rows[name]), flush=True)
            if asked.results is not None:
                asked.results.write_text(json.dumps(rows, indent=1))
            gc.collect()
    print("", *table(rows), sep="\n")
    failed = [name for name, row in rows.items() if "why" in row and not WAYS[name].is_peer]
    if failed:
        raise SystemExit(f"Without figures: {', '.join(failed)}.")


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WAYS))
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--folder", type=Path, default=Path("build/generate"))
    parser.add_argument("--results", type=Path, help="a JSON file that rows are added to")
    parser.add_argument("--show", action="store_true", help="print what the file has, and end")
    return parser.parse_args()


if __name__ == "__main__":
    main()
