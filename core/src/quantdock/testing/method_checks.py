"""Checks of the method names a plugin adds, and of the configs it gives them."""

from __future__ import annotations

from pkgutil import resolve_name

from quantdock.config import QuantizationConfig
from quantdock.registry.name_table import canonical, canonical_names, find_row, rows_of
from quantdock.registry.spelling import spell
from quantdock.testing.subject import Subject


class MethodChecks(Subject):
    """Every name leads somewhere, and every config knows its own."""

    def test_rows_say_something(self) -> None:
        """Each row has a summary, and no text of it is blank."""
        with self.loaded() as loaded:
            for row in loaded.plugin.methods:
                given = [v for v in (row.target, row.alias_of, row.remedy) if v is not None]
                assert all(word.strip() for word in (row.summary, *given)), f"{row.name}: empty"

    def test_rows_have_names_of_their_own(self) -> None:
        """No two rows are the same name in two spellings."""
        with self.loaded() as loaded:
            forms = [spell(row.name) for row in loaded.plugin.methods]
            twice = sorted({form for form in forms if forms.count(form) > 1})
            assert not twice, f"rows of one name: {twice}"

    def test_aliases_lead_to_names(self) -> None:
        """Each alias ends at a row that is no alias, on every platform it is for."""
        with self.loaded() as loaded:
            for platform in loaded.platforms():
                for row in rows_of(loaded.plugin):
                    if row.alias_of and find_row(loaded.registry, row.name, platform):
                        end = canonical(loaded.registry, row.name, platform)
                        assert end.row is not None, f"{row.name} leads to {end.name}, unknown"

    def test_targets_are_configs(self) -> None:
        """Each target is a QuantizationConfig class of its row's name."""
        with self.loaded() as loaded:
            for row in loaded.plugin.methods:
                if row.target is not None:
                    check_config(resolve_name(row.target), row.name)

    def test_answers_are_configs(self) -> None:
        """What it answers to get_quantization_config are config classes of that name."""
        with self.loaded() as loaded:
            for platform in loaded.platforms():
                for name in canonical_names(loaded.registry, platform):
                    asked = loaded.registry.ask(
                        "get_quantization_config", platform, quantization=name
                    )
                    for answer in asked.given:
                        if answer.plugin is loaded.plugin:
                            check_config(answer.value, name)


def check_config(found: object, name: str) -> None:
    """Assert that ``found`` is a concrete config class that says it is ``name``."""
    assert isinstance(found, type) and issubclass(found, QuantizationConfig), (
        f"{found!r} is no config class"
    )
    abstract = sorted(getattr(found, "__abstractmethods__", ()))
    assert not abstract, f"{found.__name__} lacks {abstract}"
    assert spell(found.get_name()) == spell(name), (
        f"{found.__name__} is named {found.get_name()}, and stands for {name}"
    )
