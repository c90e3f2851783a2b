"""The plain CPU: features from flags, architecture from features, without torch."""

from __future__ import annotations

import pytest

from quantdock.errors import PlatformError
from quantdock.registry import cpu

INTEL = "processor\t: 0\nflags\t\t: fpu sse2 avx2 fma f16c avx512f avx512bw avx512_vnni avx512_bf16"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp sve i8mm bf16\n"


@pytest.mark.parametrize(
    ("text", "features", "arch", "first"),
    [
        (f"{INTEL} amx_tile amx_bf16 amx_int8\n", {"amx_int8", "avx512_vnni"}, "amx", "bfloat16"),
        (f"{INTEL}\n", {"avx512f", "avx512_bf16"}, "avx512", "bfloat16"),
        ("flags : sse2 avx avx2 fma\n", {"avx2", "fma"}, "avx2", "float32"),
        ("flags : sse2\n", set(), "generic", "float32"),
        (ARM, {"neon", "neon_dotprod", "neon_i8mm", "neon_bf16", "sve"}, "neon", "bfloat16"),
        ("model name : odd\n", set(), "generic", "float32"),
    ],
)
def test_flags_become_features(tmp_path, text, features, arch, first):
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    found = cpu.read_features(path)
    assert features <= found
    assert cpu.name_arch(found) == arch
    assert cpu.order_dtypes(found)[0] == first


def test_a_system_without_cpuinfo_is_generic_or_arm(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu.machine, "machine", lambda: "AMD64")
    assert cpu.read_features(tmp_path / "absent") == frozenset()
    monkeypatch.setattr(cpu.machine, "machine", lambda: "arm64")
    assert cpu.read_features(tmp_path / "absent") == {"neon"}


def test_the_probe_never_fails():
    found = cpu.probe()
    assert (found.name, found.device, found.described) == ("cpu", "cpu", False)
    assert found.memory_bytes is None or found.memory_bytes > 1 << 20
    assert not found.is_accelerator


def test_memory_honours_the_limit_of_a_container(tmp_path):
    limit = tmp_path / "memory.max"
    limit.write_text("104857600\n")
    assert cpu.read_memory_bytes((limit,)) == 104857600
    limit.write_text("max\n")
    unlimited = cpu.read_memory_bytes((limit,))
    assert unlimited == cpu.read_memory_bytes(())


def test_an_unknown_architecture_lists_the_known():
    with pytest.raises(PlatformError, match="known: generic, avx2, avx512, amx, neon"):
        cpu.describe("sse9")
