"""Checks of the platforms a plugin owns: described ones on any machine, the probed one if there."""

from __future__ import annotations

import pickle
import re
from pkgutil import resolve_name
from unittest import SkipTest

from quantdock.errors import PlatformError
from quantdock.formats import DTYPES
from quantdock.platform import Absent, Platform, PlatformEntry
from quantdock.registry.platforms import get_platform
from quantdock.testing.subject import Subject

_WORD = re.compile(r"[a-z][a-z0-9_]*")
_NO_DEVICE = 63  # a device number that machines do not have


class PlatformChecks(Subject):
    """Every platform has facts, and looking for it never fails."""

    def test_describes_every_architecture(self) -> None:
        """Each listed architecture has a device, dtypes, and features that are plain words."""
        with self.loaded() as loaded:
            for entry in loaded.plugin.platforms:
                assert entry.archs, f"{entry.name} lists no architecture"
                for arch in entry.archs:
                    platform = get_platform(f"{entry.name}:{arch}")
                    wanted = f"{entry.name}:{arch}"
                    assert str(platform) == wanted, f"{wanted} is described as {platform}"
                    check_facts(platform)

    def test_refuses_unknown_architectures(self) -> None:
        """Another architecture is a PlatformError that lists the known ones."""
        with self.loaded() as loaded:
            for entry in loaded.plugin.platforms:
                try:
                    found = resolve_name(entry.describe)("no-such-arch")
                except PlatformError as error:
                    missing = [arch for arch in entry.archs if arch not in str(error)]
                    assert not missing, f"the error of {entry.name} does not list {missing}"
                else:
                    raise AssertionError(f"{entry.describe} made {found} of 'no-such-arch'")

    def test_probe_answers_on_any_machine(self) -> None:
        """A probe gives a Platform or says why there is none; it never raises."""
        with self.loaded() as loaded:
            for entry in loaded.plugin.platforms:
                for index in (0, _NO_DEVICE):
                    found = resolve_name(entry.probe)(index)
                    assert isinstance(found, Platform | Absent), f"{entry.probe} gave {found!r}"
                    if isinstance(found, Absent):
                        assert found.reason.strip(), f"{entry.probe} gives no reason"

    def test_probed_platform_has_facts(self) -> None:
        """What a probe finds on this machine has the entry's name, and facts."""
        with self.loaded() as loaded:
            for entry in loaded.plugin.platforms:
                platform = probe_or_skip(entry)
                assert platform.name == entry.name, f"{entry.probe} gave {platform}"
                assert not platform.described, f"{platform} is probed, and says it is described"
                memory = platform.memory_bytes
                assert memory is None or memory > 0, f"{platform} has {memory} bytes of memory"
                check_facts(platform)


def check_facts(platform: Platform) -> None:
    """Assert that ``platform`` is complete, and survives the way to another process."""
    assert platform.device, f"{platform} has no torch device"
    assert platform.dtypes, f"{platform} computes in no dtype"
    assert set(platform.dtypes) <= set(DTYPES), f"{platform} has dtypes {platform.dtypes}"
    wrong = [feature for feature in platform.features if not _WORD.fullmatch(feature)]
    assert not wrong, f"{platform} has features that are no plain words: {wrong}"
    assert pickle.loads(pickle.dumps(platform)) == platform, f"{platform} does not pickle"


def probe_or_skip(entry: PlatformEntry) -> Platform:
    """Return the platform on this machine, or skip the test with the reason."""
    found = resolve_name(entry.probe)(0)
    if isinstance(found, Absent):
        raise SkipTest(f"needs a {entry.name} device: {found.reason}")
    assert isinstance(found, Platform), f"{entry.probe} gave {found!r}"
    return found
