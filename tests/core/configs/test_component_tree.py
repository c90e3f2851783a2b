"""The tree of components."""

from __future__ import annotations

from quantdock.configs.component_tree import ComponentTree


def tree() -> ComponentTree:
    made = ComponentTree()
    made.add(["layers", "1"], 0)
    made.add(["layers", "1", "mlp"], 1)
    made.add(["mlp"], 2)
    made.add(["mlp"], 3)
    return made


def test_from_a_place_every_ended_entry_is_found() -> None:
    found: list[int] = []
    tree().find_from(["model", "layers", "1", "mlp", "up"], 1, found)
    assert found == [0, 1]


def test_runs_are_found_anywhere() -> None:
    found: list[int] = []
    tree().find_runs(["model", "layers", "1", "mlp"], found)
    assert found == [0, 1, 2, 3]
    tree().find_runs(["model", "layers", "10", "mlps"], found)
    assert found == [0, 1, 2, 3]


def test_entry_without_components_ends_at_once() -> None:
    made, found = ComponentTree(), list[int]()
    made.add([], 7)
    made.find_from([], 0, found)
    assert found == [7]
