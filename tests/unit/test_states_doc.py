"""docs/states.md says what the table says: its diagram is the table's, and no state is without its paragraph.

When this fails after a change of the table, put what `diagram()` and `table_in_markdown()` give between
their markers, and write the paragraph.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from qpid_ha_broker.ha.roles import table_in_markdown
from qpid_ha_broker.ha.states import Phase, State, diagram

PAGE = Path(__file__).parents[2] / "docs" / "states.md"
BEGIN, END = "<!-- diagram: begin -->\n", "<!-- diagram: end -->\n"


def section_of(state: State) -> str:
    """What stands below the state's own heading; empty when there is none."""
    _before, _heading, after = PAGE.read_text(encoding="utf-8").partition(f"\n## {state}\n")
    return after.partition("\n## ")[0].strip()


def test_the_diagram_is_drawn_from_the_table() -> None:
    drawn = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert drawn == f"```mermaid\n{diagram()}\n```\n"


def test_the_table_of_roles_and_inputs_is_the_one_of_the_code() -> None:
    shown = PAGE.read_text(encoding="utf-8").partition("<!-- table: begin -->\n")[2].partition("<!-- table: end -->")[0]
    assert shown == f"{table_in_markdown()}\n"


@pytest.mark.parametrize("state", State)
def test_each_state_has_its_paragraph(state: State) -> None:
    assert len(section_of(state)) > 200


@pytest.mark.parametrize("phase", Phase)
def test_each_phase_of_a_primary_is_told_under_primary(phase: Phase) -> None:
    assert f"`{phase}`" in section_of(State.PRIMARY)
