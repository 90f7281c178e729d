"""A record as Pacemaker's configuration holds it: one attribute, read and replaced with the help of XPath. Pure.

<cluster_property_set id="qpid-ha">
  <nvpair id="qpid-ha-record" name="record" value="1;cluster=c1;generation=3;primary=a;epoch=5;members=a,b"/>
  <nvpair id="qpid-ha-note-pause" name="note-pause" value="DIGEST:..."/>
</cluster_property_set>
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import quote, unquote
from xml.etree import ElementTree

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.coordinator import check_property_set

RECORD = "record"
"""The attribute's name."""
_NOTE = "note-"
_FORMAT = "1"
_VALUE = re.compile(
    r"1;cluster=([^;]*);generation=([0-9]{1,19});primary=([^;]*);epoch=([0-9]{1,19});members=([^;]*)(;claimed=1)?",
    re.ASCII,
)
_NODES = "/cib/configuration/nodes/node | /cib/status/node_state"
_FENCING = '/cib/configuration/crm_config/cluster_property_set/nvpair[@name="stonith-enabled"]'
_ABSENT = ("", "false", "offline", "0")
"""Of a node's in_ccm and crmd, Corosync's word and Pacemaker's; newer versions write since when it is there, or 0."""
_SWITCHED_OFF = ("false", "off", "no", "n", "0")


class DamagedRecord(ValueError):
    """What the configuration holds is not what `encode` writes; the text says what is wrong."""


class CibAnswer(NamedTuple):
    """What one node's copy of the configuration says."""

    has_quorum: bool
    value: str | None
    """None: there is no record yet."""
    nodes: frozenset[str]
    """The cluster's nodes, whether they are there or not."""
    present: frozenset[str]
    """Those that the partition's coordinating node has not given up."""
    down: frozenset[str]
    """Those of the others that were stopped in good order, or fenced: nothing runs there."""
    has_fencing: bool
    notes: Mapping[str, str] = MappingProxyType({})
    """By name, as `encode_note` wrote them."""


def encode(record: ClusterRecord) -> str:
    """One line without quotes or XML's own characters; names are percent-encoded. Raises ValueError.

    `;claimed=1` comes last, while it is one: what has begun is written as releases read it that know no such word.
    """
    if not all(record.members) or min(record.generation, record.epoch) < 0:
        raise ValueError(f"{record} has a member without a name, or a number below 0")
    cluster, primary, *members = (quote(name, safe="@:+") for name in (record.cluster, record.primary, *record.members))
    return (
        f"{_FORMAT};cluster={cluster};generation={record.generation};primary={primary};epoch={record.epoch};"
        f"members={','.join(members)}{';claimed=1' if record.claimed else ''}"
    )


def decode(value: str) -> ClusterRecord:
    """The inverse. Raises DamagedRecord; nothing but what `encode` writes is taken."""
    match = _VALUE.fullmatch(value)
    if match is None:
        raise DamagedRecord(f"it is no record of format {_FORMAT}: {value!r:.200}")
    try:
        cluster, primary, *members = (
            unquote(name, errors="strict") for name in (match[1], match[3], *(match[5].split(",") if match[5] else ()))
        )
        record = ClusterRecord(cluster, int(match[2]), primary, int(match[4]), tuple(members), bool(match[6]))
        if encode(record) == value:
            return record
    except ValueError:  # a name that is no text, or none
        pass
    raise DamagedRecord(f"its names or numbers are not written as they should be: {value!r:.200}")


def note_attribute(name: str) -> str:
    """The attribute that holds the note `name`."""
    return f"{_NOTE}{name}"


def encode_note(text: str) -> str:
    """A digest, and the text without quotes, line ends or XML's own characters."""
    return f"{_digest(text)}:{quote(text, safe='@:+,; {}()[]')}"


def decode_note(value: str) -> str:
    """The inverse. Raises DamagedRecord."""
    try:
        text = unquote(value.partition(":")[2], errors="strict")
        if encode_note(text) == value:
            return text
    except ValueError:
        pass
    raise DamagedRecord(f"a note is not written as it should be: {value!r:.200}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def query_path(name: str) -> str:
    """Selects what `read_answer` reads."""
    return f"/cib | /cib/{_set_path(name)}/nvpair | {_NODES} | {_FENCING}"


def condition_path(name: str, value: str | None, attribute: str = RECORD) -> str:
    """Selects the whole configuration if it has quorum and `attribute` is `value`; None: if there is none."""
    record = f'{_set_path(name)}/nvpair[@name="{attribute}"]'
    if value is None:
        return f'/cib[@have-quorum="1" and not({record})]'
    if '"' in value:
        raise ValueError(f"{value!r:.80} has a quote in it, which XPath cannot write")
    return f'/cib[@have-quorum="1" and {record}[@value="{value}"]]'


def note_condition_path(name: str, note: str, text: str | None) -> str:
    """The same of a note; by its digest, because a whole one is too long for an argument of a program."""
    attribute = note_attribute(note)
    if text is None:
        return condition_path(name, None, attribute)
    path = f'{_set_path(name)}/nvpair[@name="{attribute}"]'
    return f'/cib[@have-quorum="1" and {path}[starts-with(@value,"{_digest(text)}:")]]'


def update_xml(name: str, value: str, *, outranks: bool, attribute: str = RECORD) -> str:
    """To be merged into what `condition_path` selected.

    When partitions meet, the configuration with the highest (admin_epoch, epoch, num_updates) replaces the others.
    `outranks`: it shall be this one, and not that of a node which was cut off and changed its own meanwhile.
    """
    root = ElementTree.Element("cib", {"admin_epoch": "admin_epoch++"} if outranks else {})
    parent = ElementTree.SubElement(ElementTree.SubElement(root, "configuration"), "crm_config")
    properties = ElementTree.SubElement(parent, "cluster_property_set", {"id": name})
    ElementTree.SubElement(properties, "nvpair", {"id": f"{name}-{attribute}", "name": attribute, "value": value})
    return ElementTree.tostring(root, encoding="unicode")


def read_answer(text: str) -> CibAnswer:
    """What was asked for with `query_path`. Raises DamagedRecord."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise DamagedRecord(f"cibadmin's answer is no XML ({error})") from None
    elements = [root] if root.tag == "cib" else list(root)
    about = next((element for element in elements if element.tag == "cib"), None)
    pairs = [(element.get("name"), element.get("value", "")) for element in elements if element.tag == "nvpair"]
    values = [value for name, value in pairs if name == RECORD]
    if about is None or len(values) > 1:
        raise DamagedRecord("cibadmin's answer has no <cib>" if about is None else "there are two records")
    nodes = frozenset(_name(node) for node in elements if node.tag == "node" and node.get("type", "member") == "member")
    states = [element for element in elements if element.tag == "node_state" and _name(element) in nodes]
    present = frozenset(_name(state) for state in states if _is_present(state))
    return CibAnswer(
        has_quorum=about.get("have-quorum") == "1",
        value=values[0] if values else None,
        nodes=nodes,
        present=present,
        down=frozenset(_name(state) for state in states if state.get("expected") == "down") - present,
        has_fencing=not any(name == "stonith-enabled" and value.lower() in _SWITCHED_OFF for name, value in pairs),
        notes={name.removeprefix(_NOTE): value for name, value in pairs if name is not None and name.startswith(_NOTE)},
    )


def _is_present(state: ElementTree.Element) -> bool:
    return all(state.get(word, "") not in _ABSENT for word in ("in_ccm", "crmd"))


def _name(element: ElementTree.Element) -> str:
    return element.get("uname", "")


def _set_path(name: str) -> str:
    return f'configuration/crm_config/cluster_property_set[@id="{check_property_set(name)}"]'
