"""Copies of queues of other clusters that this broker keeps: their channels, and the control method `replicate`.

A copy tries its addresses in turn until it finds the primary of the other cluster, and begins again whenever it loses
it. Copies live as long as this process writes to its log; what they have copied is in that log.

Who asks for a copy names brokers that `remote-brokers` of the configuration has, and this broker logs in there as that
says. Anywhere else it would tell a stranger a password: that of the cluster's own brokers is for those alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.amqp.wire.peer_frames import Channel
from qpid_ha_broker.ha.frame_codec import decode, encode
from qpid_ha_broker.ha.frames import FrameError
from qpid_ha_broker.ha.link_ends import LinkEnd
from qpid_ha_broker.ha.queue_copy import CopyError, CopyState, QueueCopy
from qpid_ha_broker.model.sets.state import ReplayError
from qpid_ha_broker.server.control.administration import Params, check_parameters
from qpid_ha_broker.server.control.commit_waiters import CommitWaiters
from qpid_ha_broker.server.control.control import INVALID_PARAMS, REFUSED, ControlError
from qpid_ha_broker.server.peers.peer_channels import Dialler, OutgoingChannel
from qpid_ha_broker.server.peers.peer_links import link_end
from qpid_ha_broker.server.proxies.far_pool import AddressRounds
from qpid_ha_broker.server.proxies.remote_names import ConfiguredRemotes
from qpid_ha_broker.server.proxies.remote_nodes import MakeRemoteEngine
from qpid_ha_broker.server.runtime.background_tasks import TicksWhileUsed
from qpid_ha_broker.server.runtime.engines import proof_for
from qpid_ha_broker.server.runtime.host import Host
from qpid_ha_broker.server.sets.membership import Membership
from qpid_ha_config.addresses import Address, parse_peers, show_addresses
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.kinds import PEERS

log = logging.getLogger("copies")

TICK_S = 0.25
DIAL_LIMIT_S = 3.0
"""For one address to answer."""
PAUSE_MOST_S = 1.0
"""Between two rounds over all addresses."""
BEGIN_LIMIT_S = 20.0


class CopyHost(Host, Protocol):
    """What copies of queues need of the broker."""

    membership: Membership

    waiters: CommitWaiters


class CopyLink:
    """One copy, and its channel to the address that is tried or used."""

    def __init__(self, broker: CopyHost, dialler: Dialler, copy: QueueCopy, addresses: tuple[Address, ...]) -> None:
        self.copy = copy
        self.problem = ""
        """Why the last channel came to an end."""
        self.address = ""
        self._broker = broker
        self._dialler = dialler
        self._rounds = AddressRounds(tuple(map(str, addresses)), PAUSE_MOST_S)
        self._channel: OutgoingChannel | None = None
        self._heard_s = time.monotonic()
        self._is_stepping = False
        self.begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why it could not begin; empty once it has."""
        self._dial(self._heard_s)

    # --- the channel

    def _dial(self, now_s: float) -> None:
        address = self._rounds.take_address(now_s)
        if address is not None:
            self.address, self._heard_s = address, now_s
            self._channel = self._dialler.dial(address, self, DIAL_LIMIT_S)

    def opened(self, channel: Channel) -> None:
        """There is a channel: greet."""
        self._heard_s = time.monotonic()
        channel.send(encode(self.copy.follow(self.address)))

    def received(self, channel: Channel, data: bytes) -> None:
        """A frame came."""
        self._heard_s = time.monotonic()
        try:
            for answer in self.copy.received(decode(data), self._broker.container.steady.now_ms()):
                channel.send(encode(answer))
        except (CopyError, FrameError) as error:
            self._give_up(str(error))
        self._after()

    def closed(self, channel: Channel, reason: str) -> None:
        """It is gone, or there never was one."""
        self._channel = None
        self._lost(reason, link_end(reason))

    def _give_up(self, why: str) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close(why)
        self._lost(why)

    def _lost(self, reason: str, end: LinkEnd = LinkEnd.LOST) -> None:
        text = f"{self.address}: {reason}"
        if self.copy.state is CopyState.FOLLOWING or not self.problem:
            log.warning("the copy of queue %s has no primary to follow: %s", self.copy.name, text)
        self.problem = text
        self.copy.lost(self.address, end)
        if self._rounds.is_round_over and self.copy.queue is None and not self.begun.done():
            self.begun.set_result(f"no primary at {self.copy.source}; the last problem was {text}")

    def tick(self) -> None:
        """Silence, and the next attempt."""
        now_s = time.monotonic()
        self._step_soon()
        if self._channel is not None:
            limit_s = self.copy.link_timeout_s or DIAL_LIMIT_S
            if now_s - self._heard_s > max(limit_s, DIAL_LIMIT_S) and self._channel is not None:
                self._give_up(f"silent for {now_s - self._heard_s:.1f} s")
        elif not self.copy.ended:
            self._dial(now_s)

    # --- the copy

    def _after(self) -> None:
        copy = self.copy
        if copy.ended:
            self.stop(copy.ended)
        elif copy.state is CopyState.FOLLOWING and self.problem:
            log.info("the copy of queue %s follows %s at %s again", copy.name, copy.primary, self.address)
            self.problem = ""
        if copy.state is CopyState.FOLLOWING:
            self._rounds.was_open()
        if copy.queue is not None and not self.begun.done():
            self.begun.set_result(copy.ended)
        self._step_soon()
        self._broker.schedule_turn()

    def _step_soon(self) -> None:
        """Not all at once: others want to be served as well."""
        if self.copy.has_work and not self._is_stepping:
            self._is_stepping = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._is_stepping = False
        try:
            self.copy.step()
        except (CopyError, ReplayError) as error:
            log.error("the copy of queue %s: %s", self.copy.name, error)
            self._give_up(str(error))
        self._after()

    def stop(self, why: str) -> None:
        """Copy nothing more; the queue stays."""
        self.copy.end(why)
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close(why)
        if not self.begun.done():
            self.begun.set_result(why)

    def facts(self) -> dict[str, object]:
        """A row for operators."""
        copy = self.copy
        return {
            "queue": copy.name,
            "from": copy.source,
            "state": copy.state.value,
            "primary": copy.primary or None,
            "messages": 0 if copy.queue is None else copy.queue.messages.count,
            "waiting": copy.waiting,
            "lag_events": copy.lag,
            "silent_s": round(time.monotonic() - self._heard_s, 1),
            "problem": self.problem or None,
        }


class QueueCopies:
    """All copies that this broker keeps, by queue."""

    def __init__(self, broker: CopyHost, configured: ConfiguredRemotes, make_engine: MakeRemoteEngine) -> None:
        self._broker = broker
        self._configured = configured
        self._make_engine = make_engine
        self._dialler = Dialler(broker.current().name, self._engine)
        self._links: dict[str, CopyLink] = {}
        self._ticks = TicksWhileUsed(TICK_S, lambda: bool(self._links), self._tick, broker.notices.bugs_noted)

    def _engine(self, address: Address) -> Engine:
        """Raises SettingsError for one that the configuration does not name."""
        login = self._configured.login_at(address)
        if login is None:
            raise SettingsError("remote-brokers", f"it does not have {address}")
        engine = self._make_engine(address, login)
        engine.proof = proof_for(login.user, address)
        return engine

    async def replicate(self, params: Params) -> object:
        """Without params: all copies. `queue` and `address`: begin one. `queue` and `stop`: end it."""
        check_parameters("replicate", params)
        if not params:
            return [link.facts() for link in self._links.values()]
        name = params.get("queue")
        if not isinstance(name, str) or not 0 < len(name) <= 1024 or not name.isprintable():
            raise ControlError(INVALID_PARAMS, "queue is the name of a queue of the other cluster")
        if params.get("stop", False) is not False:
            return self._stop_one(name, params)
        return await self._begin(name, params.get("address"))

    def _stop_one(self, name: str, params: Params) -> object:
        if params["stop"] is not True or "address" in params:
            raise ControlError(INVALID_PARAMS, "stop is true or false, and goes with a queue alone")
        link = self._links.pop(name, None)
        if link is None:
            raise ControlError(REFUSED, f"queue {name} is no copy", {"reason": "not-found"})
        link.stop("stopped by an operator")
        log.info("queue %s is copied no more: stopped by an operator", name)
        return {"queue": name, "text": f"{name} is copied no more; it is a normal queue now"}

    async def _begin(self, name: str, url: object) -> object:
        addresses = self._addresses(url)
        self._check_allowed()
        self._check_known(addresses)
        there = self._links.get(name)
        if there is not None and not there.copy.ended:
            text = f"queue {name} is already replicated from {there.copy.source}"
            raise ControlError(REFUSED, text, {"reason": "already-exists"})
        container, source = self._broker.container, show_addresses(addresses)
        declare = container.default.configuration.declare_queue
        copy = QueueCopy(container.default.resources, declare, self._broker.current().name, name, source)
        link = self._links[name] = CopyLink(self._broker, self._dialler, copy, addresses)
        self._ticks.start()
        await self._wait_begun(name, link)
        log.info("queue %s is copied from %s", name, source)
        await self._broker.waiters.wait_committed(container.default.resources.replicated.written)
        return {**link.facts(), "text": f"{name} is copied from {source}"}

    async def _wait_begun(self, name: str, link: CopyLink) -> None:
        try:
            async with asyncio.timeout(BEGIN_LIMIT_S):
                why = await link.begun
        except TimeoutError:
            why = f"no answer from {link.copy.source} within {BEGIN_LIMIT_S:g} s"
        if why:
            link.stop(why)
            if self._links.get(name) is link:
                del self._links[name]
            raise ControlError(REFUSED, f"queue {name} is not copied: {why}", {"reason": "refused"})

    @staticmethod
    def _addresses(url: object) -> tuple[Address, ...]:
        try:
            addresses = parse_peers(url)
        except ValueError as error:
            raise ControlError(INVALID_PARAMS, f"address is {PEERS.expected}; {error}".rstrip("; ")) from None
        if not addresses:
            raise ControlError(INVALID_PARAMS, f"address is {PEERS.expected}")
        return addresses

    def _check_known(self, addresses: tuple[Address, ...]) -> None:
        unknown = [address for address in addresses if self._configured.login_at(address) is None]
        if unknown:
            text = f"remote-brokers of this broker's configuration does not have {show_addresses(unknown)}, and a copy"
            text += " comes from brokers that it names: add it there, with the user and password-file to log in with,"
            raise ControlError(REFUSED, f"{text} and restart", {"reason": "not-allowed"})

    def _check_allowed(self) -> None:
        if not self._broker.membership.clients.is_serving:
            text = "this broker is a backup and gets what its primary has: ask the primary"
            raise ControlError(REFUSED, text, {"reason": "not-primary"})
        if self._broker.membership.is_standalone and not self._broker.current().ha.queue_replication:
            text = "a standalone broker copies queues only with ha.queue-replication: true in its configuration"
            raise ControlError(REFUSED, text, {"reason": "not-allowed"})

    def _tick(self) -> None:
        self._dialler.heartbeat(time.monotonic())
        may_write = self._broker.membership.clients.is_serving
        for name, link in list(self._links.items()):
            with self._broker.notices.bugs_noted():  # the others go on
                if not may_write:
                    link.stop("this broker is no longer primary")
                link.tick()
                if link.copy.ended:
                    link.stop(link.copy.ended)
                    log.warning("queue %s is copied no more: %s", name, link.copy.ended)
                    del self._links[name]

    def facts(self) -> dict[str, object]:
        """What `query` tells; nothing where there is no copy."""
        if not self._links:
            return {}
        rows = [link.facts() for link in self._links.values()]
        shown = [f"{row['queue']} from {row['from']} ({row['state']}, lag {row['lag_events']})" for row in rows]
        return {"copied_queues": "; ".join(shown)}

    def stop(self) -> None:
        """The process ends."""
        self._ticks.cancel()
        for link in self._links.values():
            link.stop("the broker is stopping")
        self._links.clear()
