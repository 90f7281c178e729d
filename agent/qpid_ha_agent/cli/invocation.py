"""What all commands of `qpid-ha` share: which broker, how long to wait, how to print, and the exit codes.

Exit codes: 0 yes or done, 1 no, not yet or refused (the reason is on stderr), 2 usage, 3 the broker cannot be reached,
4 we may not: a wrong login, or no permission.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from qpid_ha_agent.broker_address import AddressError, find_broker, read_config
from qpid_ha_agent.control import (
    METHOD_NOT_FOUND,
    ControlClient,
    ControlFailure,
    Forbidden,
    NotAllowed,
    NotConnected,
    RequestRefused,
    Unreachable,
    call_with_cause,
    list_in_pages,
)
from qpid_ha_broker.diagnosis.commands import Reader, complete, complete_text
from qpid_ha_config.addresses import ADMIN_PORTS, Address
from qpid_ha_config.errors import ConfigError

if TYPE_CHECKING:
    from qpid_ha_agent.http_control import HttpControlClient
    from qpid_ha_agent.remote_control import RemoteControlClient
    from qpid_ha_agent.store_sources import SourceError

NO, USAGE, UNREACHABLE, MAY_NOT = 1, 2, 3, 4
USUAL_TIMEOUT_S = 10.0
FORMATS = ("table", "json", "yaml")
ANSWERED_ANYWHERE: Final = (
    "backups", "brokers", "exchanges", "history", "map", "queues", "rebalance", "replicas", "settings", "sets",
    "tokens", "users",
)  # fmt: skip
"""Methods that any broker of a cluster answers, or has answered. All others are about the one that is asked."""
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class WallClock:
    """The time of day, in seconds since 1970, and to wait."""

    now_s: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep


@dataclass
class Invocation:
    """The options that may stand before the command or after it, as qpid's tools allow."""

    broker: str | None = None
    timeout_s: float | None = None
    format: str = "table"
    password_file: str | None = None
    clock: WallClock = field(default_factory=WallClock)
    config: str = ""
    """The file that `--config` named, or that of the broker that was asked, where it was found out; empty: neither."""

    @property
    def reader(self) -> Reader:
        """Who reads what comes of it, and types what is suggested there: in the same shell, whose environment goes on
        saying what it says."""
        config = "" if os.environ.get("QPID_HA_CONFIG") == self.config else self.config
        return Reader(self.broker or "", self.password_file or "", config)

    def call(self, method: str, /, *, usual_timeout_s: float = USUAL_TIMEOUT_S, **params: object) -> Any:
        """Ask the broker; parameters that are None are left out. Ends the program when it refuses or is silent."""

        def ask(client: Any) -> Any:
            match _given(params):
                case {"cause": str(cause), **others}:
                    return call_with_cause(client, method, cause, **others)
                case given:
                    return client.call(method, **given)

        return self._ask(method, usual_timeout_s, ask)

    def rows(self, method: str) -> list[Any]:
        """All that it lists. Ends the program as `call` does."""
        rows: list[Any] = self._ask(method, USUAL_TIMEOUT_S, lambda client: list_in_pages(client, method))
        return rows

    def _ask(self, method: str, usual_timeout_s: float, ask: Callable[[Any], Any]) -> Any:
        """What comes of `ask`; where no broker was named and none is here, of what concerns the cluster at another one
        that the configuration lists."""
        with self._failures(method):
            try:
                with self.client(usual_timeout_s) as client:
                    return ask(client)
            except NotConnected as error:
                if self.broker is not None or method not in ANSWERED_ANYWHERE:
                    raise
                return self._ask_elsewhere(error, usual_timeout_s, ask)

    def _ask_elsewhere(self, error: NotConnected, usual_timeout_s: float, ask: Callable[[Any], Any]) -> Any:
        """At the first broker that lets us in; nothing is asked of two."""
        from qpid_ha_agent.login import find_login, listed_brokers
        from qpid_ha_agent.remote_control import RemoteControlClient

        timeout_s = usual_timeout_s if self.timeout_s is None else self.timeout_s
        for broker in listed_brokers(os.environ):
            with RemoteControlClient(*find_login(broker, self.password_file, os.environ), timeout_s) as client:
                try:
                    client.call("ping")
                except ControlFailure:
                    continue
                click.echo(f"no broker runs here: {broker} is asked", err=True)
                return ask(client)
        raise error

    def stream(self, method: str, /, **params: object) -> Iterator[Any]:
        """What the broker answers and goes on telling. Ends the program when it refuses, is silent or stops."""
        with self._failures(method), self.client(USUAL_TIMEOUT_S) as client:
            yield from client.stream(method, **_given(params))

    def client(self, usual_timeout_s: float) -> ControlClient | RemoteControlClient | HttpControlClient:
        """To ask the broker with. Raises AddressError, ConfigError, or Unreachable where there is none."""
        broker = find_broker(self.broker)
        timeout_s = usual_timeout_s if self.timeout_s is None else self.timeout_s
        if not isinstance(broker, Address):
            return ControlClient(broker, timeout_s)
        if broker.scheme in ADMIN_PORTS:
            from qpid_ha_agent.http_control import HttpControlClient, find_http_login

            return HttpControlClient(broker, find_http_login(self.password_file, os.environ), timeout_s)
        from qpid_ha_agent.login import find_login
        from qpid_ha_agent.remote_control import RemoteControlClient

        return RemoteControlClient(*find_login(broker, self.password_file, os.environ), timeout_s)

    @contextmanager
    def _failures(self, method: str) -> Iterator[None]:
        try:
            yield
        except (Forbidden, NotAllowed) as problem:
            raise CliFailure(str(problem), MAY_NOT) from None
        except RequestRefused as refusal:
            message = refusal.message
            if refusal.code == METHOD_NOT_FOUND:
                message = f"this broker knows no {method}: it is standalone (ha.cluster is off), or of another version"
            raise CliFailure(message, NO, refusal.code) from None
        except Unreachable as error:
            raise CliFailure(str(error), UNREACHABLE) from None
        except (AddressError, ConfigError) as error:
            raise CliFailure(str(error), USAGE) from None


def _given(params: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in params.items() if value is not None}


def reader_here() -> Reader:
    """Of the command that runs now; outside of one nothing has been said."""
    context = click.get_current_context(silent=True)
    invocation = None if context is None else context.find_object(Invocation)
    return Reader() if invocation is None else invocation.reader


def completed(text: str) -> str:
    """What is shown to the one who typed this command: our commands in it, between backticks, are complete for him."""
    return complete_text(text, reader_here())


def completed_commands(commands: Sequence[str]) -> list[str]:
    """The same of commands that stand for themselves."""
    return [complete(command, reader_here()) for command in commands]


class CliFailure(click.ClickException):
    """An error that ends the program with `exit_code`, after one line on stderr: commands in it are complete.

    `code`: of the broker's refusal, as JSON-RPC has them; None: it is no refusal.
    """

    def __init__(self, message: str, exit_code: int, code: int | None = None) -> None:
        super().__init__(completed(message))
        self.code = code
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it for the class and reads the instance's


def source_failure(errors: Sequence[SourceError], text: str = "") -> CliFailure:
    """The error for stores that cannot be looked at; `text` instead of what is wrong with them, if that was said."""
    from qpid_ha_agent.store_sources import SourceForbidden

    exit_code = MAY_NOT if any(isinstance(error, SourceForbidden) for error in errors) else UNREACHABLE
    return CliFailure(text or "; ".join(map(str, errors)), exit_code)


def call_cluster(invocation: Invocation, method: str, /, **params: object) -> Any:
    """What the cluster answers; None: the broker is in none, or of a release that does not have this."""
    try:
        return invocation.call(method, usual_timeout_s=USUAL_TIMEOUT_S, **params)
    except CliFailure as failure:
        if failure.code == METHOD_NOT_FOUND:
            return None
        if failure.exit_code == UNREACHABLE:
            text = f"{failure.message}; `--here` is about the file of this machine, for which no broker is needed"
            raise CliFailure(text, UNREACHABLE) from None
        raise


def here_option(command: Command) -> Command:
    """Add `--here`."""
    text = "In the file of this machine's broker alone, which is asked nothing."
    return click.option("--here", is_flag=True, help=text)(command)


def unexpected(result: object) -> CliFailure:
    """The error for an answer that has not the shape that its method promises."""
    return CliFailure(f"the broker's answer cannot be understood: {str(result)[:200]}", UNREACHABLE)


def facts_of(result: object) -> dict[str, Any]:
    """The answer of a method that promises an object."""
    if not isinstance(result, dict):
        raise unexpected(result)
    return result


def rows_of(result: object) -> list[dict[str, Any]]:
    """The answer of a method that promises a list of objects."""
    if not isinstance(result, list) or not all(isinstance(row, dict) for row in result):
        raise unexpected(result)
    return result


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            setattr(context.ensure_object(Invocation), name, value)

    return keep


def common_options(command: Command) -> Command:
    """Add `-b`, `--timeout`, `--format`, `--password-file` and `--cluster-manager`; what stands last counts."""
    for option in (
        click.option("--cluster-manager", is_flag=True, expose_value=False, help="For qpid's scripts; ignored."),
        click.option(
            "--password-file",
            metavar="FILE",
            callback=_keep("password_file"),
            expose_value=False,
            help="For a remote broker; default: QPID_HA_PASSWORD, with https the token in QPID_HA_TOKEN.",
        ),
        click.option(
            "--format", type=click.Choice(FORMATS), callback=_keep("format"), expose_value=False, help="Default: table."
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            callback=_keep("timeout_s"),
            expose_value=False,
            help="How long to wait for the broker; default 10, where it changes state 30.",
        ),
        click.option(
            "-b",
            "--broker",
            metavar="BROKER",
            callback=_keep("broker"),
            expose_value=False,
            help="Its name, its control socket, amqp://[USER@]HOST:PORT, or https://HOST:PORT; default: the one of this"
            " machine.",
        ),
    ):
        command = option(command)
    return command


def configured_file(key: str, question: str) -> Path:
    """The path that the configuration here has for `key`. Raises CliFailure, with `question` where it has none."""
    try:
        config = read_config(os.environ)
        file = None if config is None else config.get(key)
    except ConfigError as error:
        raise CliFailure(str(error), USAGE) from None
    if not isinstance(file, Path):
        raise CliFailure(question, USAGE)
    return file
