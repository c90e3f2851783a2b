"""The environment's word on plugins."""

from __future__ import annotations

import pytest

from quantdock.registry.settings import Settings, read_settings


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in ("PLUGINS", "STRICT_PLUGINS", "PREFER_PLUGIN"):
        monkeypatch.delenv(f"QUANTDOCK_{name}", raising=False)


def test_nothing_said_means_all_plugins_and_no_preference():
    assert read_settings() == Settings()


def test_words_are_compared_in_any_spelling(monkeypatch):
    monkeypatch.setenv("QUANTDOCK_PLUGINS", " Acme_One ,two,")
    monkeypatch.setenv("QUANTDOCK_PREFER_PLUGIN", "Acme_Two, acme-one")
    found = read_settings()
    assert found.only == {"acme-one", "two"}
    assert found.prefer == ("acme-two", "acme-one")


def test_an_empty_list_means_no_plugin(monkeypatch):
    monkeypatch.setenv("QUANTDOCK_PLUGINS", "")
    assert read_settings().only == frozenset()


@pytest.mark.parametrize(
    ("word", "strict"), [("1", True), ("true", True), ("0", False), ("", False), ("no", False)]
)
def test_strict(monkeypatch, word, strict):
    monkeypatch.setenv("QUANTDOCK_STRICT_PLUGINS", word)
    assert read_settings().strict is strict
