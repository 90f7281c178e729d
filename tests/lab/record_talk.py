"""Runs on a machine of the lab: uses the pacemaker coordinator as a broker does, as it is told line by line.

    read                    what the record is
    set RECORD              make it RECORD (a list in JSON), if it is what this process knows
    insist RECORD SECONDS   the same again and again, as a primary does that cannot have its in-sync set recorded
    race NAME START         begin a generation on what was read last, at the same time as the others
    costs ROUNDS            milliseconds of as many reads, of changes of the in-sync set, and of generations

Each is answered by one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.pacemaker import PacemakerCoordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord

PAUSE_S = 0.2


class Talk:
    """One coordinator, and the record that it was last known to hold."""

    def __init__(self) -> None:
        self._coordinator = PacemakerCoordinator()
        self._known = ClusterRecord()

    def read(self) -> dict[str, Any]:
        """Remember it, too."""
        return self._timed(lambda: (True, self._coordinator.read()))

    def set(self, wanted: list[Any]) -> dict[str, Any]:
        """Compare and set."""
        cluster, generation, primary, epoch, members, claimed = wanted
        record = ClusterRecord(cluster, generation, primary, epoch, tuple(members), claimed)
        return self._timed(lambda: self._coordinator.compare_and_set(self._known, record))

    def insist(self, wanted: list[Any], seconds: float) -> dict[str, Any]:
        """Until it is done, or refused, or time is up; the problems on the way."""
        end_s = time.monotonic() + seconds
        problems: list[str] = []
        while True:
            answer = self.set(wanted)
            if answer["done"] is not None or time.monotonic() > end_s:
                return {**answer, "problems": problems}
            problems.append(answer["problem"])
            time.sleep(PAUSE_S)

    def race(self, name: str, at_s: float) -> dict[str, Any]:
        """At that moment of the wall clock, begin the next generation on what was read last."""
        expected = self._known
        time.sleep(max(0.0, at_s - time.time()))
        return {"expected": expected.generation, **self.set(["race", expected.generation + 1, name, 1, [name], False])}

    def costs(self, rounds: int) -> dict[str, Any]:
        """Alternately, on what was read last."""
        spent: dict[str, list[float]] = {"read": [], "in-sync set": [], "generation": []}
        for _round in range(rounds):
            spent["read"].append(self.read()["ms"])
            cluster, generation, primary, epoch, members, claimed = self._known
            spent["generation"].append(self.set([cluster, generation + 1, primary, epoch, members, claimed])["ms"])
            later = [cluster, generation + 1, primary, epoch + 1, members, claimed]
            spent["in-sync set"].append(self.set(later)["ms"])
        return spent

    def _timed(self, call: Callable[[], tuple[bool, ClusterRecord]]) -> dict[str, Any]:
        began_s = time.monotonic()
        try:
            done, record = call()
        except CoordinatorError as error:
            return {"done": None, "problem": str(error), "ms": _ms_since(began_s)}
        self._known = record
        return {"done": done, "record": record, "ms": _ms_since(began_s)}


def _ms_since(began_s: float) -> float:
    return round((time.monotonic() - began_s) * 1000, 1)


def main() -> None:
    """Until the input ends."""
    talk = Talk()
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        print(json.dumps(getattr(talk, verb)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
