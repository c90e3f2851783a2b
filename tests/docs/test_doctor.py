"""docs/doctor.md describes the checks that there are."""

from __future__ import annotations

import re
from pathlib import Path

from quantdock.diagnosis.checks import CHECKS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "doctor.md"


def test_every_check_has_its_heading_in_order():
    headings = re.findall(r"^### (\d) (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == [(str(number), check.name) for number, check in enumerate(CHECKS, 1)]


def test_the_example_shows_every_check_as_it_is_printed():
    lines = re.findall(r"^(\d) (pass|warn|fail|skip)  (\w+) +\S", PAGE.read_text(), re.MULTILINE)
    assert [(int(number), name) for number, _, name in lines] == [
        (number, check.name) for number, check in enumerate(CHECKS, 1)
    ]
