"""From a name to a platform: forced, described, probed, the best one, and ties."""

from __future__ import annotations

import pytest

from quantdock import Absent, Platform, PlatformEntry, get_platform
from quantdock.errors import PlatformError, PluginConflictError
from quantdock.registry import failures, platform_entries, platform_for_device
from quantdock.registry.settings import Settings
from quantdock.testing import advertise, make_plugin, use_plugins


@pytest.fixture(autouse=True)
def no_platform_variable(monkeypatch):
    monkeypatch.delenv("QUANTDOCK_PLATFORM", raising=False)


def found(index):
    if index:
        return Absent(reason=f"no device {index}")
    return Platform(name="toyacc", arch="t1", device="toy", memory_bytes=1 << 30)


def found_other(index):
    return Platform(name="otheracc", arch="o1", device="toy")


def absent(index):
    return Absent(reason="no toy driver")


def raises(index):
    raise OSError("driver too old")


def nonsense(index):
    return "toyacc"


def describe(arch):
    if arch not in ("t1", "t2"):
        raise PlatformError(f"toyacc has no {arch}.", why=["known: t1, t2"], todo="Use one.")
    return Platform(name="toyacc", arch=arch, device="toy")


def describe_badly(arch):
    raise ZeroDivisionError("oops")


def entry(name="toyacc", rank=100, probe=found, describe=describe, archs=("t1", "t2")):
    return PlatformEntry(
        name=name,
        rank=rank,
        probe=f"{__name__}:{probe.__name__}",
        describe=f"{__name__}:{describe.__name__}",
        archs=archs,
    )


def plugin(name, *entries, **members):
    return make_plugin(name, get_platforms=lambda: entries, **members)


def test_an_accelerator_comes_before_the_cpu_and_cpu_can_be_forced(monkeypatch):
    with use_plugins(plugin("acme_toy", entry())):
        best = get_platform()
        assert (str(best), best.automatic, best.described) == ("toyacc:t1", True, False)
        assert get_platform("cpu").name == "cpu"
        monkeypatch.setenv("QUANTDOCK_PLATFORM", "CPU")
        assert get_platform().name == "cpu"
        assert not get_platform().automatic


def test_names_index_and_describe():
    with use_plugins(plugin("acme_toy", entry())):
        assert get_platform("ToyAcc").memory_bytes == 1 << 30
        assert get_platform("toyacc:0") == get_platform("toyacc")
        described = get_platform("toyacc:T2")
        assert (described.arch, described.described) == ("t2", True)
        assert get_platform(described) is described
        with pytest.raises(PlatformError, match="toyacc has no t9"):
            get_platform("toyacc:t9")
        with pytest.raises(PlatformError) as caught:
            get_platform("toyacc:3")
    assert str(caught.value) == (
        "There is no toyacc device 3 on this machine.\n"
        "  acme-toy 0.0.0: no device 3\n"
        "To plan for one that is elsewhere name its architecture, such as toyacc:t1; "
        "known: t1, t2."
    )


def test_an_unknown_platform_says_what_is_installed_and_what_may_explain_it():
    broken = advertise("no_such_module_of_acme.plugin", "acme-npu", "0.2")
    with (
        use_plugins(plugin("acme_toy", entry()), broken),
        pytest.raises(PlatformError) as caught,
    ):
        get_platform("npu:a5")
    assert str(caught.value) == (
        "No installed plugin brings the platform 'npu:a5'.\n"
        "  installed: cpu, toyacc\n"
        "  a plugin could not be used: acme-npu 0.2 (no_such_module_of_acme.plugin): "
        "ModuleNotFoundError: No module named 'no_such_module_of_acme'\n"
        "Did you mean cpu? A package brings each platform, by convention "
        "pip install quantdock-npu; `quantdock plugins` shows what is loaded."
    )


def test_two_third_parties_of_one_rank_are_a_tie():
    one = plugin("acme_one", entry())
    two = plugin("acme_two", entry("otheracc", probe=found_other))
    with use_plugins(one, two):
        with pytest.raises(PluginConflictError) as caught:
            get_platform()
        assert get_platform("otheracc").name == "otheracc"
    assert str(caught.value) == (
        "acme-one 0.0.0 and acme-two 0.0.0 each found a device here, both of rank 100.\n"
        "  acme-one 0.0.0 says toyacc:t1\n"
        "  acme-two 0.0.0 says otheracc:o1\n"
        "Set QUANTDOCK_PLATFORM=toyacc or otheracc, or QUANTDOCK_PREFER_PLUGIN=acme-one or "
        "acme-two; or load only one of them with QUANTDOCK_PLUGINS; or let the later one state "
        'REPLACES = {"toyacc": "acme-one"}.'
    )
    assert caught.value.distributions == ("acme-one", "acme-two")
    with use_plugins(one, two, settings=Settings(prefer=("acme-two",))):
        assert get_platform().name == "otheracc"


def test_a_higher_rank_is_no_tie():
    one = plugin("acme_one", entry())
    two = plugin("acme_two", entry("otheracc", rank=101, probe=found_other))
    with use_plugins(one, two):
        assert get_platform().name == "otheracc"
        assert [e.name for e in platform_entries()] == ["otheracc", "toyacc", "cpu"]


def test_two_owners_of_one_platform_are_a_tie_that_replaces_breaks():
    one, two = plugin("acme_one", entry()), plugin("acme_two", entry(archs=("t2",)))
    with use_plugins(one, two), pytest.raises(PluginConflictError, match="both own the platform"):
        get_platform("toyacc:t2")
    later = plugin("acme_two", entry(archs=("t2",)), REPLACES={"toyacc": "Acme_One"})
    with use_plugins(one, later):
        assert get_platform("toyacc:t2").arch == "t2"
        with pytest.raises(PlatformError, match="known: t2"):
            get_platform("toyacc:1")


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        (raises, "probing toyacc raised OSError: driver too old"),
        (nonsense, "probing toyacc gave 'toyacc', neither such a Platform nor Absent"),
    ],
)
def test_a_probe_that_fails_counts_as_absent_and_is_recorded(probe, reason):
    with use_plugins(plugin("acme_toy", entry(probe=probe))):
        assert get_platform().name == "cpu"
        with pytest.raises(PlatformError, match="no toyacc device 0"):
            get_platform("toyacc")
        assert [failure.reason for failure in failures()] == [reason]


def test_a_description_that_fails_says_whose_it_is():
    with (
        use_plugins(plugin("acme_toy", entry(describe=describe_badly))),
        pytest.raises(PlatformError) as caught,
    ):
        get_platform("toyacc:t1")
    assert str(caught.value) == (
        "toyacc:t1 cannot be described.\n"
        "  acme-toy 0.0.0 (acme_toy): describing toyacc:t1 raised ZeroDivisionError: oops\n"
        "Update acme-toy, or tell its authors."
    )


def test_the_platform_of_a_device(monkeypatch):
    with use_plugins(plugin("acme_toy", entry())):
        assert platform_for_device("auto").name == "toyacc"
        assert platform_for_device("toy").name == "toyacc"
        assert platform_for_device("cpu").name == "cpu"
        assert platform_for_device("cpu").automatic
        assert platform_for_device("cpu", "cpu:avx2").arch == "avx2"
        with pytest.raises(PlatformError, match="toyacc: no device 5"):
            platform_for_device("toy:5")
        with pytest.raises(PlatformError) as caught:
            platform_for_device("cpu", "toyacc:t1")
    assert str(caught.value) == (
        "The platform toyacc:t1 does not run on device cpu.\n"
        "  its tensors live on toy\n"
        "Drop one of the two, or use device='toy'."
    )


def test_a_device_without_a_platform_says_why():
    with (
        use_plugins(plugin("acme_toy", entry(probe=absent))),
        pytest.raises(PlatformError) as caught,
    ):
        platform_for_device("toy:0")
    assert str(caught.value) == (
        "No platform on this machine runs on device toy:0.\n"
        "  toyacc: no toy driver\n"
        "Leave the device out to take the best platform here. One that is missing needs its "
        "package (by convention pip install quantdock-FAMILY) and a PyTorch built for it; "
        "`quantdock plugins` shows what was found."
    )


def test_a_platform_of_the_environment_is_named_as_such(monkeypatch):
    monkeypatch.setenv("QUANTDOCK_PLATFORM", "abacus")
    with use_plugins(), pytest.raises(PlatformError) as caught:
        get_platform()
    assert caught.value.why[-1] == "QUANTDOCK_PLATFORM=abacus asks for it"
    with use_plugins(), pytest.raises(PlatformError) as caught:
        get_platform("toyacc")
    assert "QUANTDOCK_PLATFORM" not in str(caught.value)


def test_a_blank_variable_is_none(monkeypatch):
    monkeypatch.setenv("QUANTDOCK_PLATFORM", "  ")
    with use_plugins():
        assert get_platform().name == platform_for_device("cpu").name == "cpu"


@pytest.mark.parametrize(
    ("asked", "todo"),
    [("T2", "Write toyacc:T2."), (":", "Name a platform, or a platform and its architecture")],
)
def test_what_to_write_instead(asked, todo):
    with use_plugins(plugin("acme_toy", entry())), pytest.raises(PlatformError) as caught:
        get_platform(asked)
    assert caught.value.todo.startswith(todo)


def test_there_is_one_cpu():
    with use_plugins():
        for ask in (lambda: get_platform("cpu:1"), lambda: platform_for_device("cpu:1")):
            with pytest.raises(PlatformError, match="all processors of a machine are one device"):
                ask()
        assert platform_for_device("cpu:0").name == "cpu"
