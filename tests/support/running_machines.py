"""Machines on loopback, each with several brokers that share a port for clients, as `qpid-ha-agent run` runs them."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import yaml

from limits import LIMIT_S
from polling import wait_until
from qpid_ha_agent.broker_process import find_pid
from qpid_ha_agent.control import ControlClient, ControlFailure
from qpid_ha_config.workers import worker_name
from qpid_ha_demo.cluster import Facts
from qpid_ha_demo.running import RunsWhileUsed, reserve_port

LOWEST_PORT, HIGHEST_PORT, STEP = 20_000, 30_000, 16
SETTLED = ("primary", "ready", "observer")


class Worker:
    """One broker of a machine."""

    def __init__(self, name: str, control_socket: Path) -> None:
        self.name = name
        self.control_socket = control_socket

    @property
    def pid(self) -> int:
        """Of its broker; 0: there is none."""
        return find_pid(self.control_socket)

    def ask(self, method: str, **params: object) -> Facts:
        """What it answers. Raises ControlFailure."""
        with ControlClient(self.control_socket, 20.0) as control:
            answer = control.call(method, **params)
        return answer if isinstance(answer, dict) else {"answer": answer}

    @property
    def state(self) -> str:
        """`down` when it does not answer."""
        with suppress(ControlFailure):
            return str(self.ask("status").get("state"))
        return "down"


class Machine:
    """Its file, its agent's process, and its workers."""

    def __init__(
        self, directory: Path, sockets: Path, settings: Mapping[str, object], alone: Mapping[str, object], count: int
    ) -> None:
        """`alone`: what else its file says while it has one broker."""
        self.name = str(settings["name"])
        self.url = str(settings["listen"])
        own = int(str(settings["workers.listen"]).rpartition(":")[2])
        self.own_ports = range(own, own + count)
        """Of each worker, where it listens alone."""
        self.config, self.log_path = directory / f"{self.name}.yaml", directory / f"{self.name}.log"
        names = [worker_name(self.name, number) for number in range(1, count + 1)]
        self._all = [Worker(name, sockets / f"{name}.sock") for name in names]
        self._settings, self._alone = settings, alone
        self.workers: list[Worker] = []
        """That its file has it run."""
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, *, is_alone: bool) -> None:
        """Its file: of one broker, or of all workers."""
        settings = {**self._settings, **(self._alone if is_alone else {})}
        given = {key: value for key, value in settings.items() if value is not None}
        self.config.write_text(yaml.safe_dump(given), encoding="utf-8")
        self.workers = self._all[:1] if is_alone else self._all

    def start(self) -> None:
        """Have its agent run."""
        command = [sys.executable, "-m", "qpid_ha_agent.cli.agent", "run", "--config", str(self.config)]
        with self.log_path.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)

    def agents(self) -> list[psutil.Process]:
        """One for each worker."""
        return [] if self.process is None else psutil.Process(self.process.pid).children()

    def log(self) -> str:
        """All that its agents and brokers have said."""
        return self.log_path.read_text(encoding="utf-8") if self.log_path.exists() else ""

    def stop(self) -> int:
        """SIGTERM; the exit code. Who does not end in time is killed, with all that it started."""
        if self.process is None or self.process.poll() is not None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(self.process.pid).children(recursive=True):
                    child.kill()
            self.process.kill()
            return self.process.wait()


class RunningMachines(RunsWhileUsed):
    """`with RunningMachines(tmp_path, 2, 2) as cluster:` has two machines with two brokers each, and ends them."""

    def __init__(
        self,
        directory: Path,
        count: int,
        workers: int,
        settings: Mapping[str, object] | None = None,
        *,
        stores: bool,
        begin_alone: bool = False,
    ) -> None:
        """`begin_alone`: each machine has one broker at first, at the address that its first worker will have."""
        self._stack = ExitStack()
        sockets = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="qpid-ha-test-")))
        ports = self._ports(workers + 1)
        first = [next(ports) for _ in range(count)]
        (directory / "coordinator").mkdir()
        self.machines = []
        for number, port in enumerate(first, start=1):
            name = f"node{number}"
            own = {
                "name": name,
                "workers": workers,
                "workers.listen": f"amqp://127.0.0.1:{port + 1}",
                "listen": f"amqp://127.0.0.1:{port}",
                "control-socket": str(sockets / f"{name}.sock"),
                "data-dir": str(directory / name) if stores else None,
                "ha.cluster": True,
                "ha.brokers-url": ",".join(f"amqp://127.0.0.1:{each + 1}-{each + workers}" for each in first),
                "ha.coordinator": f"file:{directory / 'coordinator'}",
                **(settings or {}),
            }
            alone = {
                "workers": None,
                "workers.listen": None,
                "listen": [f"amqp://127.0.0.1:{port}", f"amqp://127.0.0.1:{port + 1}"],
                "ha.brokers-url": ",".join(f"amqp://127.0.0.1:{each + 1}" for each in first),
            }
            machine = Machine(directory, sockets, own, alone, workers)
            machine.write(is_alone=begin_alone)
            self.machines.append(machine)

    @property
    def workers(self) -> dict[str, Worker]:
        """By name."""
        return {worker.name: worker for machine in self.machines for worker in machine.workers}

    @property
    def urls(self) -> list[str]:
        """Where clients find each machine."""
        return [machine.url for machine in self.machines]

    def own_port(self, name: str) -> int:
        """Where that worker listens alone."""
        ports = [zip(machine.workers, machine.own_ports, strict=True) for machine in self.machines]
        return next(port for pairs in ports for worker, port in pairs if worker.name == name)

    def _ports(self, count: int) -> Iterator[int]:
        """The first of so many free ones in a row, which stay ours: bound here, and never listened on."""
        for first in range(LOWEST_PORT, HIGHEST_PORT, STEP):
            with ExitStack() as tried, suppress(OSError):
                for port in range(first, first + count):
                    reserve_port(tried, port)
                self._stack.push(tried.pop_all())
                yield first

    def start(self) -> None:
        """Have every agent run, and wait until one leads."""
        for machine in self.machines:
            machine.start()
        self.wait_settled()

    def stop(self) -> None:
        """End all."""
        for machine in self.machines:
            machine.stop()
            for worker in machine.workers:
                if pid := worker.pid:  # its agent was killed
                    psutil.Process(pid).kill()
        self._stack.close()

    def logs(self) -> Iterable[tuple[str, str]]:
        """Of each machine."""
        return [(machine.name, machine.log()) for machine in self.machines]

    def states(self) -> dict[str, str]:
        """By worker."""
        return {name: worker.state for name, worker in self.workers.items()}

    def primary(self) -> Worker:
        """Of `default`."""
        return next(worker for worker in self.workers.values() if worker.state == "primary")

    def wait_settled(self) -> None:
        """Until one leads `default` and all others follow."""

        def is_settled() -> bool:
            states = list(self.states().values())
            return states.count("primary") == 1 and set(states) <= set(SETTLED)

        wait_until(is_settled, lambda: f"{self.states()}", LIMIT_S)

    def sets(self) -> dict[str, Facts]:
        """As the controller tells of them; empty while nobody is it."""
        for worker in self.workers.values():
            with suppress(ControlFailure):
                rows = worker.ask("sets", action="list")["answer"]
                return {row["name"]: row for row in rows}
        return {}

    def wait_whole(self, *names: str) -> dict[str, Facts]:
        """Until these sets want nothing."""
        found: dict[str, Facts] = {}

        def is_whole() -> bool:
            found.update(self.sets())
            return all(found.get(name, {}).get("state") == "ok" for name in names)

        wait_until(is_whole, lambda: f"{found}", LIMIT_S)
        return found
