"""What is started again and again (a monitor, the agent's command, a broker) imports nothing that it does not need."""

from __future__ import annotations

import subprocess
import sys


def test_the_command_imports_next_to_nothing() -> None:
    script = "import sys, qpid_ha_agent.cli.agent; print([name for name in ('asyncio', 'yaml') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_a_monitor_never_imports_the_netlink_library() -> None:
    code = (
        "import sys; from qpid_ha_agent import vip; vip.is_up(vip.read_address('10.0.0.100/24')); print(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20)
    assert not {"pyroute2", "asyncio", "psutil", "yaml"} & set(found.stdout.split())


def test_a_monitor_never_imports_what_reads_a_configuration() -> None:
    code = (
        "import sys; import qpid_ha_agent.cli.quick, qpid_ha_agent.ocf.agent, qpid_ha_agent.ocf.parameters;"
        " import qpid_ha_agent.ocf.validation, qpid_ha_agent.vip_action; print(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20)
    ours = {name for name in found.stdout.split() if name.startswith("qpid_ha_config.")}
    assert ours == {"qpid_ha_config.defaults", "qpid_ha_config.errors", "qpid_ha_config.scalars"}
    assert not {"yaml", "ssl", "dataclasses", "inspect", "qpid_ha_broker.model"} & set(found.stdout.split())


def test_a_start_of_a_broker_waits_for_nothing_that_only_some_brokers_need() -> None:
    """A file of settings, users, Pacemaker."""
    code = "import sys; import qpid_ha_broker.server.command_line; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20)
    assert not {"yaml", "tempfile", "xml", "qpid_ha_broker.coordination.pacemaker"} & set(found.stdout.split())


def test_a_start_of_a_broker_looks_for_no_garbage_while_it_imports() -> None:
    """`--version` ends behind the imports."""
    code = (
        "import atexit, gc, sys; from qpid_ha_broker.server.main import main;"
        " rounds = lambda: sum(each['collections'] for each in gc.get_stats()[1:]); before = rounds();"
        " atexit.register(lambda: print(rounds() - before, gc.isenabled())); sys.argv[1:] = ['--version']; main()"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20)
    assert found.stdout.splitlines()[-1] == "0 True"
