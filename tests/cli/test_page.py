"""The docs show every command; tests/integration/test_docs.py runs what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.test_app import LEAVES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_has_its_place_in_the_docs(name: str) -> None:
    assert any(f"commitlog {name} " in page.read_text() for page in DOCS.rglob("*.md"))
