"""`qpid-ha-agent service ACTION` and `qpid-ha-agent primary ACTION`: what init scripts are asked, with LSB's codes.

`rgmanager/qpidd` and `rgmanager/qpidd-primary` call this, with nothing but one argument and the environment: of a
failure rgmanager knows only that it was one. What follows from it is written beside each code.
"""

from __future__ import annotations

import os
import pwd
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path

from qpid_ha_agent import actions
from qpid_ha_agent.actions import ActionFailed, Trouble
from qpid_ha_agent.control import ControlClient, ControlFailure
from qpid_ha_agent.ocf.memory import DIRECTORY
from qpid_ha_agent.ocf.starting import is_starting
from qpid_ha_agent.service import Service, read_service
from qpid_ha_agent.sight import Life, Sight, look, look_at_all
from qpid_ha_agent.started_by import StartedBy, StartedByFile
from qpid_ha_broker.ha.states import State
from qpid_ha_config.defaults import CONFIG_FILE
from qpid_ha_config.errors import ConfigError, ForbiddenConfig
from qpid_ha_config.scalars import parse_timeout_s

KINDS = {"service": "qpidd", "primary": "qpidd-primary"}
"""What each is called by people: the name of its script."""
USER = "qpid-ha"
TIMEOUTS = {"start": "60s", "stop": "30s", "promote": "20s", "hang": "3s", "first_start": "15s"}
"""first_start: how long a promotion waits for others, because nobody is promoted in an empty cluster before all of its
brokers can be asked whether they hold anything; nodes are rarely switched on at one moment."""
BROKER_PATIENCE_S = 5.0
"""rgmanager starts the services of a node all at once: the broker's may be a moment behind the primary's."""
RETRY_S = 0.2
ENOUGH_S = 1.0
"""For one that was silent for as long as a hang may last."""
_MANAGED_SERVICE = "OCF_RESKEY_service_name"


class LsbCode(IntEnum):
    """Of actions. rgmanager: a start that fails is stopped and tried on the next node; a stop that fails ends there,
    the service is `failed` until somebody looks: so a stop fails only if the broker may still be what it was."""

    DONE = 0
    FAILED = 1
    """Or refused by the broker."""
    USAGE = 2
    """The script's own: no argument, or more than one."""
    UNIMPLEMENTED = 3
    """There is no such action."""
    NOT_ALLOWED = 4
    NOT_CONFIGURED = 6
    NOT_RUNNING = 7


class LsbStatus(IntEnum):
    """Of status. rgmanager: anything but 0 is a failure; the service is stopped, then restarted or relocated."""

    RUNS = 0
    DIED = 1
    """It was started, nobody stopped it, and it is gone."""
    RUNS_NOT = 3
    """Also of a primary: the broker may run, but as a backup."""
    UNKNOWN = 4
    """There is a process, and no answer for as long as a hang may last."""


RUNS_NOT = (LsbStatus.DIED, LsbStatus.RUNS_NOT)
CODES = {
    Trouble.NOT_RUNNING: LsbCode.NOT_RUNNING,
    Trouble.CONFIGURATION: LsbCode.NOT_CONFIGURED,
    Trouble.FORBIDDEN: LsbCode.NOT_ALLOWED,
}
"""Of an action that failed; all else is FAILED."""


class Unfit(Exception):
    """The environment does not do; the text says what to put right."""

    def __init__(self, code: LsbCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def run_action(kind: str, action: str, environment: Mapping[str, str] = os.environ) -> int:
    """The exit code; a sentence is on stdout, or on stderr when it is not what was hoped for."""
    script = Script(kind, environment)
    steps = script.actions()
    if action not in steps:
        listed = "|".join(steps)
        return script.no(LsbCode.UNIMPLEMENTED, f"there is no action {action}; usage: {KINDS[kind]} {{{listed}}}")
    try:
        return steps[action]()
    except Unfit as unfit:
        return script.no(LsbStatus.UNKNOWN if action == "status" else unfit.code, str(unfit))
    except ActionFailed as failure:
        return script.no(CODES.get(failure.trouble, LsbCode.FAILED), str(failure))


@dataclass(frozen=True)
class Settings:
    """What the environment says. Raises Unfit when it is nonsense."""

    config: Path
    user: str
    log_file: str
    directory: Path
    managed_service: str
    timeouts_s: Mapping[str, float]

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        """Defaults are those of a node that was installed as the documentation says."""
        default_user = USER if os.geteuid() == 0 else ""
        return cls(
            Path(environment.get("QPID_HA_CONFIG") or CONFIG_FILE),
            environment.get("QPID_HA_USER") or default_user,
            environment.get("QPID_HA_LOG_FILE", ""),
            Path(environment.get("QPID_HA_AGENT_DIRECTORY") or DIRECTORY),
            environment.get(_MANAGED_SERVICE, ""),
            {name: _duration_s(environment, name, default) for name, default in TIMEOUTS.items()},
        )


class Script:
    """One script, asked once. Each action returns its exit code, and raises nothing but Unfit and ActionFailed."""

    def __init__(self, kind: str, environment: Mapping[str, str]) -> None:
        self._name = KINDS[kind]
        self._environment = environment

    def actions(self) -> Mapping[str, Callable[[], int]]:
        """By their names on the command line."""
        if self._name == KINDS["primary"]:
            start, stop, status = self.promote, self.demote, self.primary_status
        else:
            start, stop, status = self.start, self.stop, self.status
        return {
            "start": start,
            "stop": stop,
            "status": status,
            "restart": lambda: self._restart(stop, start),
            "try-restart": lambda: LsbCode.DONE if status() in RUNS_NOT else self._restart(stop, start),
            "reload": self.reload,
        }

    def _restart(self, stop: Callable[[], int], start: Callable[[], int]) -> int:
        """A broker that runs is not stopped for a configuration with which none would start."""
        if self._name == KINDS["service"]:
            actions.check(self._startable())
        return stop() or start()

    # --- the broker

    def start(self) -> int:
        """A broker that answers; it is the managed service's from now on, whoever started it."""
        service = self._startable()
        self._remember(service)
        try:
            sight = actions.start(service, self._settings.timeouts_s["start"])
        except ActionFailed as failure:
            if failure.trouble is Trouble.MACHINE:
                actions.check(service)  # the configuration has a code of its own
            raise
        return self._yes(f"the broker runs ({sight.state})")

    def _startable(self) -> Service:
        service = self._configured
        if service.user and os.geteuid() not in (0, _user_id(service.user)):
            raise Unfit(LsbCode.NOT_ALLOWED, f"only root may start a broker as {service.user}: run this as root")
        return service

    def stop(self) -> int:
        """No broker of this service. One that another service started is that one's."""
        known = self._started_by.read()
        own_service = self._settings.managed_service
        if known is not None and own_service and known.service not in ("", own_service):
            return self._yes(f"not stopped: the broker belongs to {known.service}, not to {own_service}")
        service = self._stoppable
        if service is None:
            return self._yes("not running: it was not started from here")
        self._step_down(service)
        how = actions.stop(service, self._settings.timeouts_s["stop"])
        self._forget()
        return self._yes(f"stopped: {how}")

    def _step_down(self, service: Service) -> None:
        """A primary that is ended waits for its clients to go, and those that came by the virtual address, which goes
        at the same time, may never hear of it. A backup has nobody to wait for."""
        if look(service.control_socket, ENOUGH_S).is_primary:
            try:
                actions.demote(service, self._cause("stop"), self._settings.timeouts_s["promote"])
            except ActionFailed as failure:
                self._say(f"ended as the primary: {failure}")

    def status(self) -> int:
        """Whether the broker runs and answers, as a backup or as the primary."""
        sight = self._look()
        if sight.life is Life.ANSWERS:
            return self._yes(f"the broker runs ({sight.state})")
        if sight.life is Life.SILENT:
            return self.no(LsbStatus.UNKNOWN, f"the broker does not answer: {sight.how}")
        died = self._started_by.read() is not None
        return self.no(
            LsbStatus.DIED if died else LsbStatus.RUNS_NOT, f"the broker {'died' if died else 'does not run'}"
        )

    def reload(self) -> int:
        """A broker has nothing that could be read anew."""
        return self.no(LsbCode.UNIMPLEMENTED, "reload is not possible: see `qpid-ha config set`, or restart")

    # --- its role

    def _cause(self, action: str) -> str:
        """Who wants a change of roles, for the broker's log and its history."""
        managed = self._settings.managed_service
        return f"rgmanager: {action} of {managed}" if managed else f"{self._name} {action}"

    def promote(self) -> int:
        """A primary, or the broker's own sentence why it will not be."""
        self._await_broker()
        cause = self._cause("start")
        deadline_s = time.monotonic() + self._settings.timeouts_s["first_start"]
        was_someone_missing = True  # whom the first refusal is about may have come before anybody looks
        while True:
            try:
                sight = actions.promote(self._service, cause, self._settings.timeouts_s["promote"])
            except ActionFailed as failure:
                is_final = failure.trouble is not Trouble.REFUSED or time.monotonic() > deadline_s
                brokers = [] if is_final or not was_someone_missing else self._brokers()
                if not _is_first_start(brokers):
                    raise
                was_someone_missing = any(row.get("name") is None for row in brokers)
                time.sleep(RETRY_S)
            else:
                return self._yes(f"the broker is primary (generation {sight.number('generation')})")

    def demote(self) -> int:
        """No primary here: a backup, or no broker at all."""
        service = self._stoppable
        if service is None:
            return self._yes("not primary: it was not started from here")
        sight = self._look()
        if sight.life is Life.SILENT and self._is_starting():  # no primary: it must not be killed for its silence
            sight = self._look_until(self._settings.timeouts_s["start"], lambda seen: seen.life is not Life.SILENT)
        if sight.life is Life.SILENT or sight.is_primary:
            limit_s = self._settings.timeouts_s["promote"] if sight.is_primary else ENOUGH_S
            try:
                sight = actions.demote(service, self._cause("stop"), limit_s)
            except ActionFailed as failure:
                self._say(f"cannot be demoted, and is stopped instead: {failure}")
                return self._yes(actions.stop(service, self._settings.timeouts_s["stop"]))
        return self._yes(f"not primary: {sight.state or sight.how}")

    def primary_status(self) -> int:
        """Whether the broker is primary."""
        sight = self._look()
        if sight.is_primary:
            return self._yes("the broker is primary")
        if sight.life is Life.SILENT:
            return self.no(LsbStatus.UNKNOWN, f"the broker does not answer: {sight.how}")
        return self.no(
            LsbStatus.RUNS_NOT,
            f"the broker is not primary: it {f'is {sight.state}' if sight.state else 'does not run'}",
        )

    # --- waiting

    def _look(self) -> Sight:
        """What it says within the time that a hang may last; of one that is starting, the first word."""
        limit_s = self._settings.timeouts_s["hang"]
        return self._look_until(limit_s, lambda sight: sight.life is not Life.SILENT)

    def _await_broker(self) -> None:
        """One that is being started, or that loads its store, is waited for as long as a start may last."""
        timeouts_s = self._settings.timeouts_s

        def is_ready(sight: Sight) -> bool:
            return sight.life is Life.ANSWERS and not sight.is_loading

        sight = self._look_until(min(BROKER_PATIENCE_S, timeouts_s["first_start"]), is_ready)
        if sight.is_loading or (sight.life is Life.SILENT and self._is_starting()):
            self._look_until(timeouts_s["start"], lambda sight: is_ready(sight) or sight.life is Life.GONE)

    def _is_starting(self) -> bool:
        return is_starting(self._service.control_socket, self._settings.timeouts_s["start"])

    def _look_until(self, limit_s: float, is_enough: Callable[[Sight], bool]) -> Sight:
        deadline_s = time.monotonic() + limit_s
        while True:
            sight = look(self._service.control_socket, max(RETRY_S, deadline_s - time.monotonic()))
            if is_enough(sight) or time.monotonic() + RETRY_S > deadline_s:
                return sight
            time.sleep(RETRY_S)

    def _brokers(self) -> list[Mapping[str, object]]:
        """Empty if nobody can tell."""
        try:
            with ControlClient(self._service.control_socket, self._settings.timeouts_s["hang"]) as client:
                return look_at_all(client)
        except ControlFailure:
            return []

    # --- surroundings

    @cached_property
    def _settings(self) -> Settings:
        return Settings.read(self._environment)

    @cached_property
    def _configured(self) -> Service:
        settings = self._settings
        try:
            return read_service(settings.config, log_file=settings.log_file, user=settings.user)
        except ForbiddenConfig as error:
            raise Unfit(LsbCode.NOT_ALLOWED, f"{error}: run this as root") from None
        except ConfigError as error:
            raise Unfit(LsbCode.NOT_CONFIGURED, str(error)) from None

    @cached_property
    def _started_by(self) -> StartedByFile:
        return StartedByFile(self._settings.config, self._settings.directory)

    @property
    def _service(self) -> Service:
        """The broker that was started, without a look into its configuration; else the one that would be."""
        known = self._started_by.read()
        if known is None:
            return self._configured
        return Service(self._settings.config, Path(known.control_socket), Path(os.devnull), ())

    @property
    def _stoppable(self) -> Service | None:
        """None when nothing says that there could be one.

        A stop must not fail because of the configuration: rgmanager would leave the service where it is. Somebody who
        may not even look cannot say that there is none.
        """
        try:
            return self._service
        except Unfit as unfit:
            if unfit.code is LsbCode.NOT_ALLOWED:
                raise
            self._say(str(unfit))
            return None

    def _remember(self, service: Service) -> None:
        try:
            self._started_by.write(StartedBy(self._settings.managed_service, str(service.control_socket)))
        except OSError as error:
            self._say(f"cannot remember whose broker this is: {error}")

    def _forget(self) -> None:
        try:
            self._started_by.forget()
        except OSError as error:
            self._say(f"cannot forget whose broker this was: {error}")

    def _yes(self, text: str) -> int:
        print(f"{self._name}: {text}", flush=True)
        return LsbCode.DONE

    def no(self, code: int, text: str) -> int:
        """Say why not."""
        self._say(text)
        return code

    def _say(self, text: str) -> None:
        line = " ".join(text.split())
        print(f"{self._name}: {line}", file=sys.stderr, flush=True)
        if _MANAGED_SERVICE in self._environment:  # rgmanager throws away what scripts print
            import syslog

            syslog.openlog(self._name, facility=syslog.LOG_DAEMON)
            syslog.syslog(syslog.LOG_WARNING, line)


def _is_first_start(brokers: Sequence[Mapping[str, object]]) -> bool:
    """Nobody who answers holds more than a store kept: the first start, or the first one after a loss of all power."""
    has_lived = any(row.get("generation") and row.get("state") != State.CONNECTING for row in brokers)
    is_restored = any(row.get("restored") for row in brokers)
    is_empty = bool(brokers) and not any(row.get("generation") for row in brokers)
    return not has_lived and (is_empty or is_restored)


def _user_id(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise Unfit(
            LsbCode.NOT_CONFIGURED, f"there is no user {name} on this machine: make it, or set QPID_HA_USER"
        ) from None


def _duration_s(environment: Mapping[str, str], name: str, default: str) -> float:
    variable = f"QPID_HA_{name.upper()}_TIMEOUT"
    text = environment.get(variable) or default
    try:
        return parse_timeout_s(text)
    except ValueError as error:
        raise Unfit(LsbCode.NOT_CONFIGURED, f"{variable}={text}: {error}") from None
