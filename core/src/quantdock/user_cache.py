"""Where QuantDock keeps, for this user, what it measured and can measure again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

CACHE = "QUANTDOCK_CACHE"
_OF_USERS = {"darwin": "Library/Caches", "win32": "AppData/Local"}  # in the home folder


def user_cache(platform: str) -> Path:
    """Return the folder for what was measured on the devices of one platform; it may not exist.

    QUANTDOCK_CACHE names the folder for all platforms; otherwise it lies where the system keeps
    caches: XDG_CACHE_HOME, or ~/.cache.
    """
    if chosen := os.environ.get(CACHE, "").strip():
        return Path(chosen).expanduser() / platform
    usual = Path.home() / _OF_USERS.get(sys.platform, ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME", "").strip() or usual) / "quantdock" / platform
