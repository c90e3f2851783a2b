"""Write the tables of the README that derive from the registry, between their markers.

Run ``python scripts/generate_tables.py`` after a change; ``--check`` fails where a table is stale.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from quantdock.registry import dispatch_for, get_platform, name_status, platform_entries

README = Path(__file__).resolve().parents[1] / "README.md"
_FP8 = "fp8"
# One architecture of each kind that a platform tells apart.
SHOWN = (
    "cpu:avx2",
    "cpu_amx:amx",
    "cuda:sm_80",
    "cuda:sm_90",
    "cuda:sm_100",
    "rocm:gfx942",
    "rocm:gfx950",
    "xpu:bmg",
)


def method_table() -> str:
    """Return the names that run on a plain CPU, and those that are known and do not yet."""
    rows = name_status("cpu:avx2")
    lines = ["| name | usable on | what it is |", "|---|---|---|"]
    lines += [f"| `{r.name}` | {r.status} | {r.summary} |" for r in rows if r.runs]
    later = ", ".join(f"`{r.name}`" for r in rows if not r.runs)
    lines += ["", "Known, not yet (the error says what to do meanwhile): " + later + "."]
    return "\n".join(lines)


def platform_table() -> str:
    """Return what fp8 means on each kind of device."""
    known = {entry.name for entry in platform_entries()}
    lines = ["| platform | element | what runs | names refused |", "|---|---|---|---|"]
    lines += [_platform_row(name) for name in SHOWN if name.partition(":")[0] in known]
    return "\n".join(lines)


def _platform_row(name: str) -> str:
    from quantdock.configs.fp8 import Fp8Config
    from quantdock.registry import get_quantization_config
    from quantdock.schemes import LayerFacts

    platform = get_platform(name)
    dispatch = dispatch_for(platform)
    found = get_quantization_config(_FP8, platform)
    assert issubclass(found, Fp8Config), "plugins refine the core's config"
    config = found.from_config({"quant_method": "fp8"})
    scheme = config.scheme_for(LayerFacts(prefix="model.layers.0.mlp.up_proj")).scheme
    assert scheme is not None, "a linear layer of an fp8 checkpoint is quantized"
    swap = next((s for s in dispatch.substitutions if s.applies(scheme, platform)), None)
    runs = f"{swap.result(scheme).name}: {swap.why}" if swap else f"{scheme.name}, as asked"
    closed = "all but its set" if platform.builtin_methods is not None else "none"
    return f"| `{name}` | {scheme.weight.element} | {runs} | {closed} |"


def updated(text: str) -> str:
    """Return ``text`` with every table written anew."""
    for marker, table in (("methods", method_table()), ("platforms", platform_table())):
        pattern = re.compile(rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)", re.DOTALL)
        text = pattern.sub(lambda m, table=table: f"{m[1]}{table}\n{m[2]}", text)
    return text


def main() -> int:
    """Write the README, or with --check return 1 where it is stale."""
    text = README.read_text(encoding="utf-8")
    fresh = updated(text)
    if "--check" in sys.argv[1:]:
        return int(text != fresh)
    README.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
