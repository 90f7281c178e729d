"""What a monitor of a higher OCF_CHECK_LEVEL looks at: the door that clients use, and the other brokers."""

from __future__ import annotations

from pathlib import Path

from qpid_ha_agent.amqp_port import problem_at
from qpid_ha_agent.control import ControlClient, ControlFailure
from qpid_ha_agent.sight import look_at_all


def closer_look(control_socket: Path, timeout_s: float, with_peers: bool) -> str:
    """What is wrong; empty when nothing is."""
    try:
        with ControlClient(control_socket, timeout_s) as client:
            problem = _at_the_door(client, timeout_s)
            return problem or (_among_peers(client) if with_peers else "")
    except ControlFailure as failure:
        return str(failure)


def _at_the_door(client: ControlClient, timeout_s: float) -> str:
    facts = client.call("query")
    listening = facts.get("listening") if isinstance(facts, dict) else None
    for address in str(listening or "").split(", "):
        problem = problem_at(address, timeout_s)
        if problem:
            return problem
    return ""


def _among_peers(client: ControlClient) -> str:
    primaries = [row for row in look_at_all(client) if row.get("state") == "primary"]
    if len(primaries) < 2:
        return ""
    names = ", ".join(f"{row.get('name')} (generation {row.get('generation')})" for row in primaries)
    return f"there is more than one primary: {names}"
