"""The command line of `qpidd`: read the settings, start the broker, stop it on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import click
import uvloop

from qpid_ha_broker import __version__
from qpid_ha_broker.access.audit import AuditChannel, AuditedAct, AuditResult, Caller
from qpid_ha_broker.amqp.wire.batches import use_kernel
from qpid_ha_broker.diagnosis.commands import Reader
from qpid_ha_broker.server.broker import Broker, BrokerFailed
from qpid_ha_broker.server.control.access_rules import Reread
from qpid_ha_broker.server.control.control import ControlError
from qpid_ha_broker.server.control.placements import NoPlacement, load_placement
from qpid_ha_broker.server.runtime.data_directory import lock_data_directory
from qpid_ha_broker.server.runtime.descriptors import raise_descriptor_limit
from qpid_ha_broker.server.runtime.kernel_choice import choose_kernel, describe
from qpid_ha_broker.server.runtime.logs import configure_logging
from qpid_ha_broker.server.runtime.tls import listener_context
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_config.defaults import CONFIG_FILE, find_file
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.loading import certificate_problems, load_access, load_each, load_settings
from qpid_ha_config.settings import BrokerSettings
from qpid_ha_kernel import Kernel

log = logging.getLogger("broker")

_YOUNG_OBJECTS, _MIDDLE_ROUNDS, _OLD_ROUNDS = 50_000, 50, 1_000_000


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", type=click.Path(path_type=Path), help="The configuration file (YAML).")
@click.option("--name", help="The broker's name.  [default: the host's name]")
@click.option("--listen", multiple=True, metavar="URL", help="Where to listen, e.g. amqp://127.0.0.1:5672; repeatable.")
@click.option("--data-dir", metavar="DIR", help="A directory that no other broker may use.")
@click.option("--control-socket", metavar="PATH", help="Where qpid-ha finds the broker.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any other setting; repeatable.")
@click.option("--check", is_flag=True, help="Read the settings and their files, say what is wrong, and start nothing.")
@click.version_option(__version__, prog_name="qpidd")
def main(
    config: Path | None,
    name: str | None,
    listen: tuple[str, ...],
    data_dir: str | None,
    control_socket: str | None,
    log_level: str | None,
    settings: tuple[str, ...],
    check: bool,
) -> None:
    """An AMQP 1.0 message broker. Flags beat the configuration file, and that beats the defaults."""
    flags: dict[str, object] = {
        "name": name,
        "listen": list(listen) or None,
        "data-dir": data_dir,
        "control-socket": control_socket,
        "log-level": log_level,
    }
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--set takes KEY=VALUE, not {setting!r}")
        flags[key] = value
    given = {key: value for key, value in flags.items() if value is not None}
    try:
        if check:
            loaded = load_each(config, given, os.environ)
            for each in loaded:
                _check(each)
            click.echo(f"qpidd: {describe(choose_kernel(loaded[0].kernel))}")
        else:
            own = load_settings(config, given, os.environ)
            reader = reader_of_log(own.name, own.workers.number, find_file(config, os.environ))
            run(own, partial(load_access, config, given, os.environ), reader)
    except (SettingsError, OSError, ControlError, BrokerFailed, StoreError) as error:
        click.echo(f"qpidd: {error}", err=True)
        sys.exit(1)


def _check(settings: BrokerSettings) -> None:
    for problem in look_before_start(settings, time.time()):
        raise problem
    click.echo(f"qpidd: the settings of {settings.name} can be used")
    for warning in warnings_of(settings):
        click.echo(f"qpidd: {warning}", err=True)


def look_before_start(settings: BrokerSettings, now_s: float) -> list[SettingsError]:
    """What would go wrong beside what `load_settings` has found, without starting anything: `--check` and a start ask
    the same. Raises SettingsError for what a broker cannot start with; returned is what one starts with all the same.
    """
    for key, path in (("data-dir", settings.data_dir), ("log-file", settings.log_file)):
        if path is not None:
            _check_writable(key, path, is_directory=key == "data-dir")
    choose_kernel(settings.kernel)
    if any(address.is_tls for address in settings.listen):
        listener_context(settings.tls)
    found = certificate_problems(settings, now_s)
    try:
        load_placement(settings.replicas.placement)
    except NoPlacement as problem:
        found.append(problem)
    return found


def warnings_of(settings: BrokerSettings) -> list[str]:
    """What a broker can be meant to do, and what somebody who did not mean it has to hear before it costs messages."""
    if settings.has_store:
        return []
    setting = "there is no data-dir" if settings.data_dir is None else "store.enabled is false"
    others = "all brokers of its cluster end" if settings.ha.cluster else "this broker ends"
    return [f"durable messages are kept in memory alone, because {setting}: they are gone when {others}"]


def _check_writable(key: str, path: Path, *, is_directory: bool) -> None:
    """Whether it can be written, or made."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if there == path and path.is_dir() is not is_directory:
        raise SettingsError(key, f"{path} is {'no' if is_directory else 'a'} directory; choose another path")
    if there != path and not (there.is_dir() and (is_directory or there == path.parent)):
        raise SettingsError(
            key, f"cannot make {path}: {there} is {'all that is there' if there.is_dir() else 'a file'}"
        )
    if os.statvfs(there).f_flag & os.ST_RDONLY:
        raise SettingsError(key, f"cannot write {there}: {os.strerror(errno.EROFS)}; look at the kernel's log")
    if not os.access(there, os.W_OK | (os.X_OK if there.is_dir() else 0)):
        raise SettingsError(key, f"cannot write {there}: give it to the user that the broker runs as")


def reader_of_log(name: str, worker: int, config: Path | None) -> Reader:
    """What has to be said with a command that this broker's log suggests: nothing, if it goes by the machine's own file
    and is the only one that does. `worker`: its number; 0: it is none."""
    if config is None:
        return Reader()
    is_of_machine = config.absolute() == CONFIG_FILE
    if is_of_machine and worker == 0:
        return Reader()
    return Reader(name, config="" if is_of_machine else str(config.absolute()))


def run(settings: BrokerSettings, reread_access: Reread | None = None, reader: Reader | None = None) -> None:
    """Run a broker until it is told to stop. `reread_access`: see `Broker`; `reader`: of its log.

    Raises SettingsError, StoreError or OSError when it cannot start, BrokerFailed when it had to end by itself.
    """
    configure_logging(settings.log_level, settings.log_file, reader)
    for problem in look_before_start(settings, time.time()):
        log.error("the broker starts without this working: %s", problem)
    kernel = choose_kernel(settings.kernel)
    use_kernel(kernel if isinstance(kernel, Kernel) else None)
    raise_descriptor_limit()
    if settings.data_dir is not None:
        lock_data_directory(settings.data_dir)  # until the process ends: a load that was given up may still be at it
    uvloop.run(_serve(settings, reread_access))


async def _serve(settings: BrokerSettings, reread_access: Reread | None) -> None:
    broker = Broker(settings, reread_access)
    async with contextlib.AsyncExitStack() as stack:
        if settings.admin.listen:
            from qpid_ha_broker.server.http.http_admin import open_admin_port  # aiohttp: many brokers do without

            stack.push_async_callback((await open_admin_port(broker)).close)
        await _run_broker(broker, settings)


async def _run_broker(broker: Broker, settings: BrokerSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _told_to_stop, broker, stop)
    loop.add_signal_handler(signal.SIGHUP, broker.files.reload)
    ends = [loop.create_task(event.wait()) for event in (stop, broker.ended)]
    starting = loop.create_task(broker.start())
    await asyncio.wait([starting, *ends], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        log.info("told to stop before the store was loaded")
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():
            starting.result()
        return
    starting.result()
    tame_garbage_collector()
    log.info("%s listens on %s, control socket %s", settings.name, ", ".join(broker.listening), settings.control_socket)
    log.info("%s", describe(choose_kernel(settings.kernel)))
    for warning in warnings_of(settings):
        log.warning("%s", warning)
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    await broker.stop()
    if broker.failure:
        raise BrokerFailed(broker.failure)


def _told_to_stop(broker: Broker, stop: asyncio.Event) -> None:
    if not stop.is_set():
        broker.files.audit.record(AuditedAct(Caller(AuditChannel.SIGNAL), "stop", {}, AuditResult.DONE))
    stop.set()


def tame_garbage_collector() -> None:
    """Queued messages are not garbage: looking through a million of them for cycles takes 0.3 s, and finds none.

    What starts up stays; young objects are looked at in larger lots; the oldest are left alone.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _MIDDLE_ROUNDS, _OLD_ROUNDS)
