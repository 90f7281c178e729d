"""`qpid-ha-agent ACTION` as Pacemaker calls it: whatever happens, one code and one sentence.

Monitors run every few seconds on every node: what only some actions need is imported there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from qpid_ha_agent.ocf.codes import OcfCode, exit_reason

if TYPE_CHECKING:
    from qpid_ha_agent.ocf.agent import OcfAgent

ACTIONS = (
    "start", "stop", "monitor", "promote", "demote", "notify", "validate-all", "meta-data", "reload-agent", "status",
)  # fmt: skip

WHATEVER_IS_SET = ("stop", "demote", "monitor", "status", "notify", "reload-agent")
"""A wrong parameter is no reason to fence a machine whose broker could be stopped, nor to call a running one dead."""


def run_action(action: str, environment: Mapping[str, str] = os.environ) -> OcfCode:
    """The outcome; the reason for a bad one is on stderr as `ocf-exit-reason:`."""
    if action == "meta-data":
        from qpid_ha_agent.ocf.metadata import metadata

        sys.stdout.write(metadata())
        return OcfCode.SUCCESS
    from qpid_ha_agent.actions import ActionFailed
    from qpid_ha_agent.ocf.agent import OcfAgent
    from qpid_ha_agent.ocf.parameters import ParameterError, read_parameters, without_wrong_ones
    from qpid_ha_agent.ocf.validation import Invalid
    from qpid_ha_agent.pacemaker.attributes import ClusterUnreachable
    from qpid_ha_agent.vip_action import VirtualIpProblem

    try:
        parameters = read_parameters(environment)
    except ParameterError as error:
        exit_reason(str(error))
        if action not in WHATEVER_IS_SET:
            return OcfCode.ERR_CONFIGURED
        parameters = read_parameters(without_wrong_ones(environment))
    try:
        return _actions(OcfAgent(parameters, environment))[action]()
    except Invalid as invalid:
        exit_reason(str(invalid))
        return invalid.code
    except (ActionFailed, ClusterUnreachable, VirtualIpProblem, OSError) as error:
        exit_reason(str(error))
        return OcfCode.ERR_GENERIC


def _actions(agent: OcfAgent) -> Mapping[str, Callable[[], OcfCode]]:
    return {
        "start": agent.start,
        "stop": agent.stop,
        "monitor": agent.monitor,
        "status": agent.monitor,
        "promote": agent.promote,
        "demote": agent.demote,
        "notify": agent.notify,
        "validate-all": agent.validate_all,
        "reload-agent": agent.reload_agent,
    }
