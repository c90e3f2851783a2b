"""Discovery: what is installed, what is narrowed, what is hidden, what is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from quantdock import get_quantization_config
from quantdock.errors import MethodLookupError, PluginLoadError
from quantdock.registry import failures, plugins
from quantdock.registry.registry import Registry

Install = Callable[..., Path]
Load = Callable[[], Registry]

GOOD = """
from quantdock import MethodName, hookimpl
CONTRACT = 1
@hookimpl
def get_quantization_methods():
    return (MethodName(name="toy", summary="a toy", target="quantdock.configs.fp8:Fp8Config"),)
"""
BROKEN = "raise ImportError('libfoo.so: cannot open shared object file')"


def loaded(registry: Registry) -> list[str]:
    return [str(plugin) for plugin in registry.plugins if plugin.distribution.startswith("acme")]


def reasons(registry: Registry) -> dict[str, str]:
    return {
        f"{failure.distribution} {failure.version}": failure.reason
        for failure in registry.failures
        if failure.distribution.startswith("acme")
    }


def test_no_plugin_leaves_the_core(monkeypatch: pytest.MonkeyPatch, load: Load) -> None:
    monkeypatch.setenv("QUANTDOCK_PLUGINS", "")
    registry = load()
    assert [plugin.distribution for plugin in registry.plugins] == ["quantdock"]
    assert registry.failures == ()
    assert get_quantization_config("fp8").__name__ == "Fp8Config"


def test_an_installed_plugin_loads(install: Install, load: Load) -> None:
    install("acme-toy", GOOD, version="2.1")
    registry = load()
    assert loaded(registry) == ["acme-toy 2.1"]
    plugin = registry.plugins[0]
    assert plugin.hooks == ("get_quantization_methods",)
    assert [row.name for row in plugin.methods] == ["toy"]
    assert plugins() == plugins() == registry.plugins


def test_a_plugin_that_fails_to_import_is_kept_and_explains(install: Install, load: Load) -> None:
    install("acme-good", GOOD)
    install("acme-broken", BROKEN, version="0.3")
    registry = load()
    assert loaded(registry) == ["acme-good 1.0"]
    text = "ImportError: libfoo.so: cannot open shared object file"
    assert reasons(registry) == {"acme-broken 0.3": text}
    assert failures()[0].stage == "import"
    with pytest.raises(MethodLookupError) as caught:
        get_quantization_config("acme_q4", "cpu")
    assert f"a plugin could not be used: acme-broken 0.3 (acme_broken): {text}" in str(caught.value)


def test_exit_at_import_takes_nobody_down(install: Install, load: Load) -> None:
    install("acme-exit", "raise SystemExit('no licence')")
    assert reasons(load()) == {"acme-exit 1.0": "SystemExit: no licence"}


@pytest.mark.parametrize(
    ("source", "stage", "reason"),
    [
        (
            "from quantdock import hookimpl\n@hookimpl\ndef get_kernels(platform): return ()",
            "contract",
            "it states no CONTRACT; this QuantDock speaks contract 1",
        ),
        (
            "CONTRACT = 2",
            "contract",
            "it states CONTRACT = 2; this QuantDock speaks contract 1: "
            "install versions that belong together",
        ),
        (
            "CONTRACT = 1",
            "hooks",
            "it implements no hook; the hooks are get_platforms, get_quantization_config, "
            "get_quantization_methods, get_kernels, get_substitutions, get_tuner",
        ),
        (
            "from quantdock import hookimpl\nCONTRACT = 1\n"
            "@hookimpl\ndef get_kernals(platform): return ()",
            "hooks",
            "there is no hook 'get_kernals'; did you mean get_kernels?",
        ),
        (
            "from quantdock import hookimpl\nCONTRACT = 1\n"
            "@hookimpl\ndef get_kernels(plattform): return ()",
            "hooks",
            "get_kernels takes (platform); its parameter 'plattform' is not one of them",
        ),
        (
            "from quantdock import hookimpl\nCONTRACT = 1\n"
            "@hookimpl\ndef get_kernels(platform=None): return ()",
            "hooks",
            "get_kernels takes (platform) without defaults; 'platform' has one and would never be "
            "passed",
        ),
        (
            "CONTRACT = 1\ndef get_kernels(platform): return ()",
            "hooks",
            "get_kernels is not marked with quantdock.hookimpl, so nobody would ask it",
        ),
        (
            "import pluggy\nCONTRACT = 1\n"
            "@pluggy.HookimplMarker('other')\ndef get_kernels(platform): return ()",
            "hooks",
            "get_kernels is not marked with quantdock.hookimpl, so nobody would ask it",
        ),
        (
            "from quantdock import hookimpl\nCONTRACT = 1\n"
            "@hookimpl(wrapper=True)\ndef get_kernels(platform): return (yield)",
            "hooks",
            "get_kernels is a wrapper; hooks give answers and cannot wrap others",
        ),
        (
            "from quantdock import hookimpl\nCONTRACT = 1\n"
            "@hookimpl\ndef get_platforms(): return ['npu']",
            "hooks",
            "get_platforms() gave ['npu'], not a list of PlatformEntry",
        ),
        (
            "from quantdock import hookimpl\nCONTRACT = 1\n"
            "@hookimpl\ndef get_platforms(): raise OSError('no driver')",
            "hooks",
            "get_platforms() raised OSError: no driver",
        ),
        (
            "from quantdock import hookimpl\nCONTRACT = 1\nREPLACES = 'acme-old'\n"
            "@hookimpl\ndef get_kernels(platform): return ()",
            "hooks",
            "REPLACES is 'acme-old', not a mapping of names to distributions",
        ),
    ],
)
def test_a_plugin_outside_the_contract_is_refused_whole(
    install: Install, load: Load, source: str, stage: str, reason: str
) -> None:
    install("acme-odd", source)
    registry = load()
    assert loaded(registry) == []
    assert reasons(registry) == {"acme-odd 1.0": reason}
    assert [f.stage for f in registry.failures if f.distribution == "acme-odd"] == [stage]


def test_an_entry_point_must_name_a_module(install: Install, load: Load) -> None:
    install("acme-object", GOOD + "\nthing = 5", value="acme_object:thing")
    assert reasons(load()) == {
        "acme-object 1.0": "the entry point names int 5, not a module",
    }


def test_the_public_lookup_may_be_imported_by_a_plugin(install: Install, load: Load) -> None:
    install("acme-user", "from quantdock import get_quantization_config\n" + GOOD)
    assert loaded(load()) == ["acme-user 1.0"]


def test_a_second_copy_is_reported_and_the_first_is_used(install: Install, load: Load) -> None:
    hidden = install("acme-twice", GOOD, version="1.0", folder="late")
    used = install("acme-twice", GOOD, version="2.0", folder="early")
    registry = load()
    assert loaded(registry) == ["acme-twice 2.0"]
    assert reasons(registry) == {
        "acme-twice 1.0": f"this copy in {hidden} is hidden by version 2.0 in {used}; "
        "uninstall one of them"
    }
    assert [f.stage for f in registry.failures if f.distribution == "acme-twice"] == ["duplicate"]


def test_one_module_of_two_distributions_is_loaded_once(install: Install, load: Load) -> None:
    install("acme-one", GOOD, module="acme_shared")
    install("acme-two", GOOD, module="acme_shared", folder="other")
    registry = load()
    assert loaded(registry) == ["acme-one 1.0"]
    assert reasons(registry) == {"acme-two 1.0": "acme-one 1.0 advertises the same module"}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("Metadata-Version: 2.1\nVersion: 1.0\n", "odd 1.0"),
        ("Metadata-Version: 2.1\nName: acme-other\nVersion: 1.0\n", "acme-other 1.0"),
        (None, "odd unknown"),
    ],
)
def test_damaged_metadata_takes_nobody_down(
    install: Install, load: Load, metadata: str | None, expected: str
) -> None:
    info = install("acme-odd", GOOD) / "acme_odd-1.0.dist-info"
    (info / "METADATA").unlink()
    if metadata:
        (info / "METADATA").write_text(metadata)
    registry = load()
    assert expected in [str(plugin) for plugin in registry.plugins]
    assert registry.failures == ()


def test_one_module_under_two_names_is_loaded_once(install: Install, load: Load) -> None:
    install("acme-one", GOOD)
    install("acme-two", "import acme_one as plugin", value="acme_two:plugin", folder="other")
    registry = load()
    assert loaded(registry) == ["acme-one 1.0"]
    assert reasons(registry) == {"acme-two 1.0": "acme_one is the same module"}


def test_a_setting_narrows(install: Install, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    install("acme-one", GOOD)
    install("acme-two", GOOD.replace('"toy"', '"toy2"'))
    install("acme-broken", BROKEN)
    monkeypatch.setenv("QUANTDOCK_PLUGINS", "one, Acme_Two, acme-three")
    registry = load()
    assert loaded(registry) == ["acme-one 1.0", "acme-two 1.0"]
    assert "acme-broken" in registry.excluded
    assert [str(failure) for failure in registry.failures] == [
        "acme-three: QUANTDOCK_PLUGINS names it, and no installed distribution advertises such a "
        "plugin"
    ]
    with pytest.raises(MethodLookupError, match="left out by QUANTDOCK_PLUGINS: acme-broken"):
        get_quantization_config("acme_q4", "cpu")


def test_the_strict_setting_raises(
    install: Install, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("acme-broken", BROKEN)
    monkeypatch.setenv("QUANTDOCK_STRICT_PLUGINS", "1")
    with pytest.raises(PluginLoadError) as caught:
        load()
    assert str(caught.value) == (
        "The plugin acme-broken 1.0 (acme_broken) could not be used.\n"
        "  ImportError: libfoo.so: cannot open shared object file\n"
        "Repair or uninstall it, or unset QUANTDOCK_STRICT_PLUGINS to go on without it."
    )
    assert isinstance(caught.value.__cause__, Exception)


def test_a_preferred_plugin_that_is_not_installed_is_told(
    install: Install, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("acme-toy", GOOD)
    monkeypatch.setenv("QUANTDOCK_PREFER_PLUGIN", "Acme_Toy,acme-nope,quantdock")
    registry = load()
    assert loaded(registry) == ["acme-toy 1.0"]
    (reason,) = reasons(registry).values()
    assert reason == (
        "QUANTDOCK_PREFER_PLUGIN names it, and no installed distribution advertises such a plugin"
    )
    monkeypatch.setenv("QUANTDOCK_STRICT_PLUGINS", "1")
    with pytest.raises(PluginLoadError, match="QUANTDOCK_PREFER_PLUGIN names it"):
        load()


def test_what_a_plugin_prints_never_mixes_with_the_output(
    install: Install, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    talks = GOOD.replace("    return", "    print('asked')\n    return")
    install("acme-toy", f"print('hello from a plugin')\n{talks}")
    assert loaded(load()) == ["acme-toy 1.0"]
    told = capsys.readouterr()
    assert told.out == "" and told.err == "hello from a plugin\nasked\n"
