"""Arguments of public functions: every wrong type is an error that says what is meant."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantdock
from quantdock.arguments import KINDS, RANKS, checked
from quantdock.errors import ConfigError, QuantDockError

# Looked up by name, so that errors list what there is.
LOOKED_UP = {"quantization", "device", "dtype", "platform"}
OWN = {"policy", "tp", "model"}
PUBLIC = ("load", "explain", "doctor", "reload", "convert_checkpoint")
WRONG: dict[str, tuple[Any, ...]] = {
    "ignore": ("lm_head", 3, None, [3], {"a": 1}, b"x", [None]),
    "choices": ("x", 3, ["a"], [("*.q", "fp8")], {3: "fp8"}, {"a": 3}, {"a": None}),
    "kv_cache": (3, None, True, ["fp8"], "", "fp9"),
    "dtype": (3, None, ["float32"], b"x", "bf17", ""),
    "platform": (3, True, ["cpu"], b"cpu", 1.0, "cpu:amx:1"),
    "quantization": (3, True, ["fp8"], b"fp8", {"a": 1}, ""),
    "device": (None, ["cpu"], 1.5, "gpu", ""),
    "policy": (3, "exact", {}),
    "tp": ("2", (0, 2), 1.0, 0, -1),
    "prefer": (3, ["reference"], True),
    "require": (3, ["reference"], True),
    "track": (3, None, "x"),
    "on_outcome": (3, "x"),
    "layers": (3, ["*"]),
    "base": (3, b"x"),
    "bits": ("4", True),
    "group_size": ("128", 1.5),
    "max_shard_bytes": ("1GB",),
    "to": (3, None, ["fp8"]),
}
FLAGS = ("no", None, 2)
PATHS = (3, None, b"x", ["a"])


def cases() -> list[Any]:
    found = []
    for function in PUBLIC:
        for name in signature(getattr(quantdock, function)).parameters:
            is_flag = name in KINDS and KINDS[name].words.startswith("True")
            usual = PATHS if name in ("path", "source", "target") else FLAGS if is_flag else ()
            values = WRONG.get(name, usual)
            if name == "symmetric":
                values = ("no", 2)
            found += [
                pytest.param(function, name, v, id=f"{function}-{name}-{v!r}") for v in values
            ]
    return found


def test_every_parameter_is_checked_or_looked_up() -> None:
    names = {n for f in PUBLIC for n in signature(getattr(quantdock, f)).parameters}
    assert names == set(KINDS) | LOOKED_UP | OWN


@pytest.mark.parametrize(("function", "name", "value"), cases())
def test_a_wrong_argument_is_an_error_in_three_parts(
    shared: Path, tmp_path: Path, function: str, name: str, value: Any
) -> None:
    folder = shared / "models" / "bases" / "stories260k"
    usual: dict[str, Any] = {
        "load": {"path": folder, "quantization": "fp8", "device": "cpu"},
        "explain": {"source": folder, "quantization": "fp8", "platform": "cpu"},
        "doctor": {"path": folder, "quantization": "fp8", "quick": True},
        "reload": {"model": None, "path": folder},
        "convert_checkpoint": {
            "source": folder,
            "target": tmp_path / "out",
            "to": "fp8_per_channel",
        },
    }[function]
    call = getattr(quantdock, function)
    try:
        result = call(**{**usual, name: value})
    except QuantDockError as error:
        assert error.what and error.todo and (error.why or name == "model")
        return
    assert function == "doctor" and name in (*LOOKED_UP, "kv_cache"), result
    assert result.exit_code == 1  # a lookup that fails is a check that fails


def test_a_lone_pattern_is_told_how_it_is_written() -> None:
    with pytest.raises(ConfigError) as caught:
        quantdock.explain("anywhere", ignore="lm_head")
    assert caught.value.todo == "Write ignore=['lm_head']."
    assert (caught.value.field, caught.value.value) == ("ignore", "lm_head")


@pytest.mark.parametrize("function", ["get_platform", "dispatch_for"])
@pytest.mark.parametrize("value", [3, ["cpu"], b"cpu"])
def test_a_platform_is_a_name_or_a_platform(function: str, value: Any) -> None:
    with pytest.raises(QuantDockError, match="is neither a name nor a Platform"):
        getattr(quantdock, function)(value)
    with pytest.raises(QuantDockError, match="is neither a name nor a Platform"):
        quantdock.get_quantization_config("fp8", value)


@checked(tp=RANKS)
def echo(
    ignore: Any = (), exact: Any = False, bits: Any = None, symmetric: Any = None, tp: Any = 1
) -> tuple[Any, ...]:
    return ignore, exact, bits, symmetric, tp


@pytest.mark.parametrize(
    "names",
    [
        ["a", "b"],
        ("a", "b"),
        {"a": 1, "b": 2}.keys(),
        {1: "a", 2: "b"}.values(),
        np.array(["a", "b"]),
    ],
)
def test_names_may_stand_in_whatever_can_be_gone_through(names: Any) -> None:
    assert echo(ignore=names)[0] == ("a", "b")
    assert echo(ignore=(name for name in names))[0] == ("a", "b")
    assert echo(set(names) - {"b"})[0] == ("a",)


def test_numbers_and_truths_of_other_libraries_are_taken_as_python_has_them() -> None:
    found = echo(exact=np.True_, bits=np.int64(4), symmetric=np.False_, tp=np.int32(2))[1:]
    assert found == (True, 4, False, 2)
    assert [type(value) for value in found] == [bool, int, bool, int]


@pytest.mark.parametrize(
    ("name", "value"),
    [("exact", np.int64(1)), ("exact", np.array([True])), ("bits", np.True_), ("tp", np.int64(0))],
)
def test_what_is_of_another_library_and_wrong_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"echo was given {name}="):
        echo(**{name: value})


def test_a_call_that_python_refuses_names_the_function() -> None:
    with pytest.raises(TypeError, match=r"load\(\) missing 1 required positional argument: 'path'"):
        quantdock.load()
    refused = r"explain\(\) got an unexpected keyword argument 'tp'"
    with pytest.raises(TypeError, match=refused) as caught:
        quantdock.explain("anywhere", tp=2)
    assert caught.value.__context__ is None  # nothing else is told
