"""What all commands of `qpid-ha` share: which broker, how long to wait, how to print, and the exit codes.

Exit codes: 0 yes or done, 1 no or refused (the reason is on stderr), 2 usage, 3 the broker cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from qpid_ha_agent.broker_address import AddressError, find_socket
from qpid_ha_agent.control import ControlClient, Refused, Unreachable

NO, USAGE, UNREACHABLE = 1, 2, 3
FORMATS = ("table", "json", "yaml")
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass
class Invocation:
    """The options that may stand before the command or after it, as qpid's tools allow."""

    broker: str | None = None
    timeout_s: float = 10.0
    format: str = "table"

    def call(self, method: str, **params: object) -> Any:
        """Ask the broker; parameters that are None are left out. Ends the program when it refuses or is silent."""
        given = {name: value for name, value in params.items() if value is not None}
        try:
            with ControlClient(find_socket(self.broker), self.timeout_s) as client:
                return client.call(method, **given)
        except Refused as refusal:
            raise Failure(refusal.message, NO) from None
        except Unreachable as error:
            raise Failure(str(error), UNREACHABLE) from None
        except AddressError as error:
            raise Failure(str(error), USAGE) from None


class Failure(click.ClickException):
    """An error that ends the program with `exit_code`, after one line on stderr."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click declares it for the class and reads the instance's


def unexpected(result: object) -> Failure:
    """The error for an answer that has not the shape that its method promises."""
    return Failure(f"the broker's answer cannot be understood: {str(result)[:200]}", UNREACHABLE)


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            setattr(context.ensure_object(Invocation), name, value)

    return keep


def common_options(command: Command) -> Command:
    """Add `-b`, `--timeout`, `--format` and `--cluster-manager`; what stands last counts."""
    for option in (
        click.option("--cluster-manager", is_flag=True, expose_value=False, help="For qpid's scripts; ignored."),
        click.option(
            "--format", type=click.Choice(FORMATS), callback=_keep("format"), expose_value=False, help="Default: table."
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            metavar="SECONDS",
            callback=_keep("timeout_s"),
            expose_value=False,
            help="How long to wait for the broker; default 10.",
        ),
        click.option(
            "-b",
            "--broker",
            metavar="BROKER",
            callback=_keep("broker"),
            expose_value=False,
            help="Its name, its control socket, or unix:PATH; default: the one of this machine.",
        ),
    ):
        command = option(command)
    return command
