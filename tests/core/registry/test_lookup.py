"""Resolving a name: spelling, closed sets, the step down, and every error text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quantdock import MethodName, PlatformEntry, get_quantization_config
from quantdock.errors import MethodLookupError, MethodNotYetError
from quantdock.platform import Platform
from quantdock.registry import failures, resolve_method
from quantdock.registry.names import NAMES
from quantdock.testing import make_plugin, use_plugins

REPACKED = ("awq_marlin", "gptq_marlin")  # no kernel of a plain CPU repacks codes
CORE = ", ".join(sorted(row.name for row in NAMES if row.target and row.name not in REPACKED))
TARGET = "quantdock.configs.fp8:Fp8Config"
NARROW = Platform(
    name="narrow", arch="one", device="cpu", builtin_methods=frozenset({"fp8", "aqlm", "auto_gptq"})
)


def probe_narrow(index: int) -> Platform:
    return NARROW


def describe_narrow(arch: str) -> Platform:
    return NARROW


def narrow_plugin(name="acme_narrow", rank=10, **members):
    """A platform of rank 10 that is always there and closes its set to fp8, aqlm, gptq."""
    entry = PlatformEntry(
        name="narrow",
        rank=rank,
        probe=f"{__name__}:probe_narrow",
        describe=f"{__name__}:describe_narrow",
        archs=("one",),
    )
    return make_plugin(name, get_platforms=lambda: (entry,), **members)


@pytest.fixture(autouse=True)
def no_platform_variable(monkeypatch):
    monkeypatch.delenv("QUANTDOCK_PLATFORM", raising=False)


@pytest.mark.parametrize("typed", ["fp8_per_channel", "FP8-Per-Channel", " fp8_per-channel "])
def test_spelling_does_not_matter(typed):
    with use_plugins():
        assert resolve_method(typed, "cpu:generic").name == "fp8_per_channel"


def test_an_alias_is_followed_and_noted():
    with use_plugins():
        found = resolve_method("PTPC_fp8", "cpu:generic")
        assert found.name == "fp8_per_channel"
        assert found.notes == ("ptpc_fp8 is another name of fp8_per_channel",)
        assert found.distribution == "quantdock"
        assert resolve_method("unquant", "cpu:generic").name == "none"


def test_an_unknown_name_lists_only_what_runs(monkeypatch):
    with use_plugins(), pytest.raises(MethodLookupError) as caught:
        resolve_method("fp9", "cpu:generic", source="config.json: quantization_config")
    assert str(caught.value) == (
        "There is no quantization method 'fp9' on cpu:generic.\n"
        "  asked for by config.json: quantization_config\n"
        f"  runs on cpu:generic: {CORE}\n"
        "  runs on other platforms only: nothing more\n"
        "Did you mean fp8? If another package brings it, pip install that package; "
        "`quantdock plugins` shows what is loaded."
    )
    assert caught.value.asked == "fp9"
    assert caught.value.runnable == tuple(CORE.split(", "))


@pytest.mark.parametrize("name", ["", "  ", None, {"quant_method": "fp8"}, 8])
def test_what_is_no_word_is_one_clear_error(name):
    with use_plugins(), pytest.raises(MethodLookupError) as caught:
        get_quantization_config(name, "cpu:generic")
    assert f"There is no quantization method {name!r} on cpu:generic." in str(caught.value)
    assert str(caught.value).endswith("Name a method, such as fp8, or 'none'.")


def test_a_known_name_comes_with_its_remedy():
    with use_plugins(), pytest.raises(MethodNotYetError) as caught:
        get_quantization_config("gptq_marlin_24", "cpu:generic")
    assert str(caught.value) == (
        "gptq_marlin_24 is known and not supported yet on cpu:generic.\n"
        "  it is: 2:4-sparse GPTQ in Marlin's layout\n"
        f"  runs on cpu:generic: {CORE}\n"
        "  runs on other platforms only: nothing more\n"
        "Its own engine dropped it. Load the 16-bit original of this model and quantize it at "
        "load: quantization='fp8_per_channel' (or fp8_per_block, mxfp8)."
    )
    assert "gptq_marlin_24" not in caught.value.runnable


def test_a_closed_set_is_an_error_for_an_explicit_platform():
    with use_plugins(narrow_plugin()), pytest.raises(MethodLookupError) as caught:
        get_quantization_config("mxfp8", "narrow")
    assert type(caught.value) is MethodLookupError
    elsewhere = [name for name in CORE.split(", ") if name not in ("fp8", "gptq", "none")]
    assert str(caught.value) == (
        "narrow:one does not run mxfp8.\n"
        "  runs on narrow:one: fp8, gptq, none\n"
        f"  runs on other platforms only: {', '.join(f'{name} (cpu)' for name in elsewhere)}\n"
        "Choose platform cpu (--platform cpu, or QUANTDOCK_PLATFORM=cpu), or a method that "
        "narrow:one runs."
    )


def test_a_closed_set_names_the_remedy_of_what_runs_nowhere():
    with use_plugins(narrow_plugin()), pytest.raises(MethodNotYetError) as caught:
        get_quantization_config("gguf", "narrow")
    assert str(caught.value).startswith(
        "narrow:one does not run gguf.\n  it is not supported elsewhere yet: GGUF files"
    )
    assert "from_pretrained(folder, gguf_file=name, " in str(caught.value)


def test_names_inside_a_closed_set_that_are_not_supported_say_so():
    with use_plugins(narrow_plugin()), pytest.raises(MethodNotYetError, match="not supported yet"):
        get_quantization_config("aqlm", "narrow")


def test_an_automatic_choice_steps_down_and_says_so():
    with use_plugins(narrow_plugin()):
        assert resolve_method("fp8").platform == NARROW
        found = resolve_method("mxfp8")
        assert found.platform.name == "cpu"
        assert found.notes == (f"narrow:one does not run mxfp8; stepped down to {found.platform}",)


def test_a_platform_from_the_environment_is_explicit(monkeypatch):
    monkeypatch.setenv("QUANTDOCK_PLATFORM", "narrow")
    with use_plugins(narrow_plugin()), pytest.raises(MethodLookupError, match="does not run mxfp8"):
        get_quantization_config("mxfp8")


def test_an_automatic_platform_stays_automatic_when_handed_on():
    from quantdock import get_platform

    with use_plugins(narrow_plugin()):
        here = get_platform()
        assert here.automatic and here == NARROW
        assert resolve_method("mxfp8", here).platform.name == "cpu"
        with pytest.raises(MethodLookupError):
            resolve_method("mxfp8", replace(here, automatic=False))


def test_none_is_always_open():
    with use_plugins(narrow_plugin()):
        assert resolve_method("unquant", "narrow").name == "none"


def test_names_that_plugins_bring_for_a_platform_join_its_set():
    row = MethodName(name="toy_q4", summary="a toy", target=TARGET, platforms=frozenset({"narrow"}))
    extra = make_plugin("acme_extra", get_quantization_methods=lambda: (row,))
    with use_plugins(narrow_plugin(), extra):
        found = resolve_method("toy-q4", "narrow")
        assert (found.name, found.distribution) == ("toy_q4", "acme-extra")
        with pytest.raises(MethodLookupError) as caught:
            get_quantization_config("toy_q4", "cpu:generic")
    assert "runs on other platforms only: toy_q4 (narrow)" in str(caught.value)
    assert str(caught.value).endswith(
        "It runs on narrow: choose that with --platform or QUANTDOCK_PLATFORM."
    )


def test_a_method_whose_library_is_missing_stays_and_says_how_to_get_it():
    def answer(quantization, platform):
        if quantization == "bitsandbytes":
            raise ImportError("libfoo.so: cannot open shared object file")

    with use_plugins(make_plugin("acme_bnb", get_quantization_config=answer)):
        assert get_quantization_config("fp8", "cpu:generic").__name__ == "Fp8Config"
        with pytest.raises(MethodLookupError) as caught:
            get_quantization_config("bitsandbytes", "cpu:generic")
        assert failures()[0].distribution == "acme-bnb"
    assert "ImportError: libfoo.so: cannot open shared object file" in str(caught.value)
    assert str(caught.value).endswith("Repair it: pip install --upgrade --force-reinstall acme-bnb")


def test_a_missing_module_is_named_for_pip():
    row = MethodName(name="toy", summary="a toy", target="no_such_library.configs:Toy")
    with (
        use_plugins(make_plugin("acme_toy", get_quantization_methods=lambda: (row,))),
        pytest.raises(MethodLookupError) as caught,
    ):
        get_quantization_config("toy", "cpu:generic")
    assert "importing no_such_library.configs:Toy for toy raised ModuleNotFoundError" in str(
        caught.value
    )
    assert str(caught.value).endswith("Install what is missing: pip install no_such_library")


def test_aliases_in_a_circle_are_an_error():
    rows = tuple(
        MethodName(name=name, summary="a circle", alias_of=other)
        for name, other in (("hen", "egg"), ("egg", "hen"))
    )
    with (
        use_plugins(make_plugin("acme_hen", get_quantization_methods=lambda: rows)),
        pytest.raises(MethodLookupError, match="'hen' go round in a circle"),
    ):
        get_quantization_config("hen", "cpu:generic")


def test_a_warm_lookup_is_one_look_into_a_table():
    calls = []

    def answer(quantization, platform):
        calls.append(quantization)

    with use_plugins(make_plugin("acme_ear", get_quantization_config=answer)):
        first = get_quantization_config("fp8", "cpu:generic")
        assert calls == ["fp8"]
        assert get_quantization_config("fp8", "cpu:generic") is first
        assert calls == ["fp8"]
