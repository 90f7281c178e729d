"""The cluster's configuration before its first start: what cannot wait until somebody loads the rest."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Final

from lab.plan import Plan

PATH: Final = "/var/lib/pacemaker/cib/cib.xml"
_SCHEMA: Final = "pacemaker-3.8"
"""With an older one, crmsh writes Master where Promoted is meant."""


def first_cib(plan: Plan) -> str:
    """dc-deadtime is the point: with its default a first start waits 20 s for nodes that are not there."""
    root = ET.Element(
        "cib",
        {"validate-with": _SCHEMA, "crm_feature_set": "3.0.0", "admin_epoch": "0", "epoch": "1", "num_updates": "0"},
    )
    configuration = ET.SubElement(root, "configuration")
    properties = ET.SubElement(
        ET.SubElement(configuration, "crm_config"), "cluster_property_set", id="cib-bootstrap-options"
    )
    for name, value in _properties(plan).items():
        ET.SubElement(properties, "nvpair", id=f"cib-bootstrap-options-{name}", name=name, value=value)
    ET.SubElement(configuration, "nodes")
    resources = ET.SubElement(configuration, "resources")
    if plan.has_fencing:
        _add_fencing(resources, plan)
    ET.SubElement(configuration, "constraints")
    ET.SubElement(root, "status")
    return ET.tostring(root, encoding="unicode")


def _properties(plan: Plan) -> dict[str, str]:
    return {
        "dc-deadtime": "2s",
        "stonith-enabled": "true" if plan.has_fencing else "false",
        "stonith-timeout": "20s",
        "no-quorum-policy": "stop",
        "cluster-recheck-interval": "30s",
    }


def _add_fencing(resources: ET.Element, plan: Plan) -> None:
    device = ET.SubElement(resources, "primitive", {"id": "fencing", "class": "stonith", "type": "fence_lab"})
    attributes = ET.SubElement(device, "instance_attributes", id="fencing-attributes")
    parameters = {"pcmk_host_check": "static-list", "pcmk_host_list": " ".join(plan.members)}
    for name, value in parameters.items():
        ET.SubElement(attributes, "nvpair", id=f"fencing-{name}", name=name, value=value)
