"""What can be said of the parameters before anything is started: for all nodes, and for this one."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from qpid_ha_agent.ocf.codes import OcfCode
from qpid_ha_agent.ocf.parameters import Parameters
from qpid_ha_agent.service import Service, read_service
from qpid_ha_config.errors import ConfigError, UnreadableConfig

TOOLS = ("crm_attribute", "attrd_updater", "crm_resource")


class Invalid(Exception):
    """The text says what is wrong; `code`, for whom."""

    def __init__(self, code: OcfCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def service_of(parameters: Parameters) -> Service:
    """The broker that the parameters mean. Raises Invalid."""
    try:
        return read_service(
            Path(parameters.config), parameters.control_socket, parameters.log_file,
            parameters.binary, parameters.user, parameters.data_dir,
        )  # fmt: skip
    except UnreadableConfig as error:
        raise Invalid(OcfCode.ERR_ARGS, f"config: {error}: put the broker's configuration there") from None
    except ConfigError as error:  # each node has its own copy: another one may be right
        raise Invalid(OcfCode.ERR_ARGS, f"config: {error}") from None


def check_everywhere(parameters: Parameters) -> None:
    """What is wrong on every node. Raises Invalid."""
    if parameters.virtual_ip_nic and not parameters.virtual_ip:
        raise Invalid(OcfCode.ERR_CONFIGURED, "virtual_ip_nic is set, and virtual_ip is not: set both, or neither")
    if parameters.virtual_ip:
        from qpid_ha_agent.vip import read_address

        try:
            read_address(parameters.virtual_ip, parameters.virtual_ip_nic)
        except ValueError as error:
            raise Invalid(OcfCode.ERR_CONFIGURED, f"virtual_ip: {error}") from None


def check_here(parameters: Parameters) -> Service:
    """What is wrong on this node. Raises Invalid."""
    check_everywhere(parameters)
    for code, problem in _problems_here(parameters):
        raise Invalid(code, problem)
    return service_of(parameters)


def _problems_here(parameters: Parameters) -> Iterator[tuple[OcfCode, str]]:
    import shutil  # a monitor needs this module, and not that one

    if os.geteuid() != 0:
        yield OcfCode.ERR_PERM, "only root may manage a broker: Pacemaker runs agents as root"
    if parameters.binary and shutil.which(parameters.binary) is None:
        yield OcfCode.ERR_INSTALLED, f"binary: there is no program {parameters.binary} on this node"
    for tool in TOOLS:
        if shutil.which(tool) is None:
            yield OcfCode.ERR_INSTALLED, f"{tool} is not installed on this node: install Pacemaker's command line tools"
    if parameters.user and not _is_user(parameters.user):
        yield OcfCode.ERR_ARGS, f"user: there is no user {parameters.user} on this node: make it, or set another one"
    if parameters.virtual_ip_nic and not Path("/sys/class/net", parameters.virtual_ip_nic).exists():
        yield OcfCode.ERR_ARGS, f"virtual_ip_nic: there is no interface {parameters.virtual_ip_nic} on this node"


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
