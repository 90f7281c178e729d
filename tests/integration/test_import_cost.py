"""What is started again and again (a monitor, the agent's command, a broker) imports nothing that it does not need."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from cluster_in_process import free_ports


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
    assert ours == {f"qpid_ha_config.{name}" for name in ("closing", "defaults", "errors", "scalars")}
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


SAYS_WHAT_IT_HAS = "import atexit, sys; atexit.register(lambda: print('modules', *sys.modules, file=sys.stderr)); "
BROKER = SAYS_WHAT_IT_HAS + "from qpid_ha_broker.server.main import main; main()"
AGENT = SAYS_WHAT_IT_HAS + "from qpid_ha_agent.cli.quick import main; main()"


def test_a_broker_without_queues_has_imported_nothing_of_what_few_brokers_need(tmp_path: Path) -> None:
    """Groups and Corosync, the admin port, coordinators that it has not, what a mistake or a deletion takes."""
    config = write_config(tmp_path)
    loaded = modules_of([sys.executable, "-c", BROKER, "--config", str(config)], " listens on ")
    assert "qpid_ha_broker.server.sets.set_host" in loaded
    packages = {"aiohttp", "kazoo", "requests", "psutil", "pyroute2", "cffi", "difflib", "shutil", "multiprocessing"}
    assert not (packages | {"qpid_ha_agent", "qpid_ha_broker.group"}) & loaded
    coordinators = {name for name in loaded if name.startswith("qpid_ha_broker.coordination.")}
    assert not coordinators & {f"qpid_ha_broker.coordination.{name}" for name in ("etcd", "zookeeper", "pacemaker")}


def test_an_agent_at_rest_has_imported_no_broker(tmp_path: Path) -> None:
    """Of the broker: what a coordinator remembers, and what a configuration may say."""
    config = write_config(tmp_path)
    broker = tmp_path / "qpidd"
    broker.write_text(f"#!{sys.executable}\nfrom qpid_ha_broker.server.main import main\nmain()\n", encoding="utf-8")
    broker.chmod(0o755)
    command = [sys.executable, "-c", AGENT, "run", "--config", str(config), "--qpidd", str(broker)]
    loaded = modules_of(command, " promotion refused")
    assert "qpid_ha_agent.runner" in loaded
    assert not {"aiohttp", "kazoo", "requests", "psutil", "pyroute2", "cffi", "difflib", "uvloop"} & loaded
    ours = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("qpid_ha_broker.")}
    assert not {f"qpid_ha_broker.{package}" for package in ("amqp", "server", "store", "cluster", "group")} & ours
    of_ha = {name for name in loaded if name.startswith("qpid_ha_broker.ha.")}
    assert of_ha == {"qpid_ha_broker.ha.cluster_record", "qpid_ha_broker.ha.states"}


def write_config(directory: Path) -> Path:
    """Of a cluster whose other broker is not there, with the file coordinator."""
    (directory / "coordinator").mkdir()
    ours, other = (f"127.0.0.1:{port}" for port in free_ports(2))
    ha = {"cluster": True, "brokers-url": f"amqp://{ours},{other}", "coordinator": f"file:{directory / 'coordinator'}"}
    settings = {"name": "a", "listen": [f"amqp://{ours}"], "control-socket": str(directory / "control"), "ha": ha}
    config = directory / "a.yaml"
    config.write_text(json.dumps(settings), encoding="utf-8")
    return config


def modules_of(command: list[str], until: str) -> set[str]:
    """What the program has imported by the time that it has logged `until`, was told to stop, and has."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process:
        said = list[str]()
        for line in process.stderr:
            said.append(line)
            if until in line:
                process.send_signal(signal.SIGTERM)
    modules = [line.split()[1:] for line in said if line.startswith("modules ")]
    assert len(modules) == 1, said
    return set(modules[0])
