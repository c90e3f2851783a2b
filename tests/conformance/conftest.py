"""The plugins of this checkout can be imported whether or not they are installed."""

from __future__ import annotations

import sys
from pathlib import Path

for source in sorted((Path(__file__).resolve().parents[2] / "plugins").glob("*/src")):
    if str(source) not in sys.path:
        sys.path.append(str(source))
