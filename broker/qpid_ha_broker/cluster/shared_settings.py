"""Settings that count for all brokers of a cluster: what the controller checks before the map has one.

The safety property: nothing is written that a broker of the cluster cannot read. Who is older does not say that it can
(`BrokerReport.reads_settings`), and who has a replica of `default` and does not report is taken for older. What a value
means is not known here; that each broker can put it in force was asked before (`server.sets.cluster_settings`).

| what is asked | what is there | what comes of it |
| --- | --- | --- |
| a value | another one, or none | it is written |
| a value | the same | nothing, and that is said |
| none | one | that is written: the configuration files count again |
| none | none | refused: nobody has set it |
"""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.cluster.context import ControllerContext
from qpid_ha_broker.cluster.messages import AnswerRequest, ChangeSetting
from qpid_ha_broker.cluster.queue_placement import ClusterRefusal, EarlyRefusal
from qpid_ha_broker.events import types as ev

MOST: Final = 200
"""Settings; there are not so many that count for a cluster."""
VALUE_BYTES_MOST: Final = 32 * 1024


class SharedSettings:
    """See the table."""

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx

    def change(self, number: int, asked: ChangeSetting) -> None:
        """Have it written. Raises ClusterRefusal."""
        ctx, (key, value, user) = self._ctx, asked
        there = ctx.map.settings
        before = there.get(key, "")
        if not value and not before:
            others = ", ".join(sorted(there)) or "nothing"
            raise ClusterRefusal(f"{key} is not set for the cluster, {others} is")
        if len(value.encode()) > VALUE_BYTES_MOST or (key not in there and len(there) >= MOST):
            raise ClusterRefusal(f"a value has {VALUE_BYTES_MOST} bytes at most, and there are {MOST} settings at most")
        self._check_release()
        if value != before:
            ctx.write(ev.SettingChanged(key, value, user, ctx.message_time_ms))
            was, now = before or "as in the files", value or "as in the files"
            ctx.note("info", f"setting {key} of the cluster: {was} -> {now}, by {user or 'somebody on a machine'}")
        ctx.answer(AnswerRequest(number, True, f"{key} of the cluster", {"key": key, "old": before, "new": value}))

    def _check_release(self) -> None:
        reports = self._ctx.reports
        silent = sorted(reports.backups_of_default() - reports.brokers.keys())
        if silent:
            raise EarlyRefusal(f"{', '.join(silent)} does not report to the controller: is it just starting?")
        older = sorted(name for name, broker in reports.brokers.items() if not broker.reads_settings)
        if older:
            raise ClusterRefusal(
                f"{', '.join(older)} is of a release that knows no settings of a cluster: upgrade it first"
            )
