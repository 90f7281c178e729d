"""What `meta-data` prints: the description of the resource agent, made from the table of parameters."""

from __future__ import annotations

from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from qpid_ha_agent.ocf.parameters import TABLE, Parameter

VERSION = "1.0"
DOCTYPE = """<!DOCTYPE resource-agent SYSTEM "ra-api-1.dtd" [
<!ATTLIST parameter unique-group CDATA #IMPLIED reloadable (0|1) "0">
<!ATTLIST action name CDATA #REQUIRED>
]>"""
"""The DTD that resource-agents installs is that of OCF 1.0. What 1.1 adds is declared here: of two declarations of an
attribute the first counts, and these come before those of the file (XML 1.0, sections 2.8 and 3.3)."""
SHORT = "A qpid-ha message broker, promotable"
LONG = """
Manages a broker of a qpid-ha cluster as a promotable clone: one instance is promoted and serves clients, the others are
hot standby backups. Run it with notify=true: before a promotion each node publishes how far its broker is, so that the
furthest is promoted. A broker that does not hold everything that was confirmed is never promoted.
"""


class Offer(NamedTuple):
    """An action with the time-out that suits it. Intervals differ for the two roles, as Pacemaker demands."""

    name: str
    timeout: str
    interval: str = ""
    role: str = ""
    depth: str = ""


ACTIONS = (
    Offer("start", "70s"),
    Offer("stop", "40s"),
    Offer("monitor", "20s", "10s", "Promoted", "0"),
    Offer("monitor", "20s", "11s", "Unpromoted", "0"),
    Offer("promote", "40s"),
    Offer("demote", "40s"),
    Offer("notify", "20s"),
    Offer("reload-agent", "20s"),
    Offer("validate-all", "20s"),
    Offer("meta-data", "5s"),
)


def metadata() -> str:
    """XML after the schema of the OCF resource agent API 1.1."""
    parameters = "\n".join(_parameter(row) for row in TABLE)
    actions = "\n".join(_action(offer) for offer in ACTIONS)
    return f"""<?xml version="1.0"?>
{DOCTYPE}
<resource-agent name="qpid-ha" version="{VERSION}">
<version>1.1</version>
<longdesc lang="en">{escape(LONG)}</longdesc>
<shortdesc lang="en">{escape(SHORT)}</shortdesc>
<parameters>
{parameters}
</parameters>
<actions>
{actions}
</actions>
</resource-agent>
"""


def _parameter(row: Parameter) -> str:
    flags = f' unique-group="{row.unique_group}"' if row.unique_group else ""
    flags += ' reloadable="1"' if row.reloadable else ""
    return f"""<parameter name="{row.name}"{flags}>
<longdesc lang="en">{escape(row.long)}</longdesc>
<shortdesc lang="en">{escape(row.short)}</shortdesc>
<content type="{row.kind}" default={quoteattr(row.default)}/>
</parameter>"""


def _action(offer: Offer) -> str:
    given = {name: value for name, value in offer._asdict().items() if value}
    return "<action " + " ".join(f'{name}="{value}"' for name, value in given.items()) + "/>"
