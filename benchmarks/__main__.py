"""Run every benchmark: ``python -m benchmarks``, or some of them by name."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

PREFIX = "bench_"


def names() -> list[str]:
    """Return the names of all benchmarks, such as "linear" for bench_linear.py."""
    folder = Path(__file__).parent
    return sorted(path.stem.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*.py"))


def main(asked: list[str]) -> None:
    """Run the benchmarks called ``asked``, or all."""
    unknown = sorted(set(asked) - set(names()))
    if unknown:
        sys.exit(f"No benchmark is called {', '.join(unknown)}. There are: {', '.join(names())}.")
    for name in asked or names():
        import_module(f"benchmarks.{PREFIX}{name}").main()


if __name__ == "__main__":
    main(sys.argv[1:])
