"""A controller by itself: what it is told, what it answers and orders, and the map that it writes."""

from __future__ import annotations

from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster.controller import Controller
from qpid_ha_broker.cluster.placement import Placement, spread
from qpid_ha_broker.cluster_map import ClusterMap

SETTINGS = ms.ControllerSettings()


def report(name: str, *replicas: ms.ReplicaReport, uuid: str = "", instance: str = "") -> ms.BrokerReport:
    """A full one: all that this broker hosts."""
    identity = ms.BrokerIdentity(name, uuid or f"uuid-{name}", instance or f"{name}/1", f"{name}:1", "", "", "1.0")
    return ms.BrokerReport(
        identity, 1, True, 1 << 30, replicas, reads_tombstones=True, reads_settings=True, reads_logins=True
    )


class Bench:
    """A controller on broker `a`, its map, and what it said."""

    def __init__(self, *brokers: str, placement: Placement = spread, was_forced: bool = False) -> None:
        self.map, self.lsn, self.now_s = ClusterMap(), 0, 0.0
        self.controller = Controller(SETTINGS, placement)
        self.said: list[ms.ControllerEffect] = []
        self.answers_questions = True
        """Whoever is asked says at once that it does not lead."""
        self.reported: dict[str, tuple[ms.ReplicaReport, ...]] = {}
        self.feed(ms.ControllerBegan(self.map, "a", 1, 0, was_forced=was_forced))
        for name in brokers:
            self.hosts(name)

    def feed(self, happened: ms.ControllerInput) -> list[ms.ControllerEffect]:
        effects = self.controller.handle(happened, self.now_s)
        self.said += effects
        for effect in effects:
            if isinstance(effect, ms.WriteMap):
                for event in effect.events:
                    self.lsn += 1
                    self.map.apply(self.lsn, event)
                self.feed(ms.MapWritten(effect.number, self.lsn))
            elif isinstance(effect, ms.AskBroker) and self.answers_questions:
                self.feed(ms.BrokerAnswered(effect.name, effect.set, 0))
        return effects

    def hosts(self, broker: str, *replicas: ms.ReplicaReport, instance: str = "") -> list[ms.ControllerEffect]:
        """That broker reports these replicas, and no others."""
        self.reported[broker] = replicas
        return self.feed(ms.ReportReceived(report(broker, *replicas, instance=instance)))

    def stay(self, for_s: float) -> None:
        """Time passes, and all brokers go on to report what they have reported."""
        for _ in range(round(for_s)):
            self.wait(1.0)
            for broker, replicas in self.reported.items():
                self.hosts(broker, *replicas)

    def wait(self, for_s: float = 0.0) -> None:
        """Time passes, a tenth of a second at a time; at least the controller has a look at it."""
        for _ in range(round(for_s * 10)):
            self.now_s += 0.1
            self.feed(ms.TimePassed())
        if not for_s:
            self.feed(ms.TimePassed())

    def lead(self, broker: str, set_name: str, **changes: object) -> None:
        """That broker has the record of the set changed: with the next generation, unless told otherwise."""
        record = self.map.sets[set_name].record
        changes = {"generation": record.generation + 1, "primary": broker} | changes
        self.feed(ms.RecordRequested(broker, 1, set_name, record, record._replace(**changes)))  # type: ignore[arg-type]

    def controller_history(self, about: str) -> list[str]:
        entries = self.ask(ms.ShowHistory(about)).result["entries"]
        return [str(entry["text"]) for entry in entries] if isinstance(entries, list) else []

    def ask(self, request: ms.ClusterRequest) -> ms.AnswerRequest:
        number = len(self.said) + 1
        self.feed(ms.RequestReceived(number, request))
        self.feed(ms.MapCommitted(self.lsn))
        return next((each for each in self.answers() if each.number == number), self.answers()[-1])

    def answers(self, since: int = 0) -> list[ms.AnswerRequest]:
        """To requests of operators; `since`: leave out so much of what was said."""
        return [effect for effect in self.said[since:] if isinstance(effect, ms.AnswerRequest)]

    def given(self, since: int = 0) -> list[ms.GiveOrder]:
        """The orders; `since` as in `answers`."""
        return [effect for effect in self.said[since:] if isinstance(effect, ms.GiveOrder)]
