"""The reference of settings: each is in it once, and the page in docs/ is what the table says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from click.testing import CliRunner

from qpid_ha_agent.cli.admin import admin
from qpid_ha_config.reference import SECTIONS, entries, page
from qpid_ha_config.settings import SECRETS, TABLE

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_each_setting_has_one_entry() -> None:
    described = Counter(key for summaries in SECTIONS.values() for key in summaries)
    assert set(described) == set(TABLE)
    assert set(described.values()) == {1}


def test_the_page_is_made_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m qpid_ha_config.reference > docs/settings.md"


def test_an_entry_is_a_sentence_with_a_range_and_a_default() -> None:
    for _, rows in entries():
        for row in rows:
            assert row.summary.endswith("."), row.key
            assert row.kind, row.key
            assert row.default, row.key
            assert row.key not in SECRETS or row.default == "none"


def test_one_is_described_where_somebody_asks_and_a_slip_names_the_nearest() -> None:
    described = CliRunner().invoke(admin, ["config", "describe", "ha.min-in-sync"])
    assert described.output.splitlines()[0].startswith("ha.min-in-sync: ")
    assert described.output.splitlines()[1:] == [
        "  value: a whole number from 1 to 100", "  default: 1", "  changes: at run time, for all brokers",
    ]  # fmt: skip
    assert all(f"  {key}: " in CliRunner().invoke(admin, ["config", "describe"]).output for key in TABLE)
    wrong = CliRunner().invoke(admin, ["config", "describe", "ha.min-insync"])
    assert (wrong.exit_code, "did you mean ha.min-in-sync?" in wrong.output) == (2, True)
