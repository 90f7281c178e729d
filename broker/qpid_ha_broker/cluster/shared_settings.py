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

Users and tokens are settings with a secret for a value, which neither a log nor an answer has; who adds one wants it to
be new, and who changes a password wants it to be there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qpid_ha_broker.cluster.context import ControllerContext
from qpid_ha_broker.cluster.messages import AnswerRequest, ChangeLogin, ChangeSetting
from qpid_ha_broker.cluster.queue_placement import ClusterRefusal, EarlyRefusal
from qpid_ha_broker.cluster.reports import ReportedBroker
from qpid_ha_broker.cluster_map import TOKENS, USERS, is_secret
from qpid_ha_broker.events import types as ev

MOST: Final = 200
"""Settings; there are not so many that count for a cluster."""
VALUE_BYTES_MOST: Final = 32 * 1024
LOGINS_MOST: Final = {USERS: 10_000, TOKENS: 1000}
LOGIN_BYTES_MOST: Final = 2048


class SharedSettings:
    """See the table."""

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx

    def change(self, number: int, asked: ChangeSetting) -> None:
        """Have it written. Raises ClusterRefusal."""
        ctx, (key, value, user) = self._ctx, asked
        there = ctx.map.plain_settings
        if is_secret(key):
            raise ClusterRefusal(f"{key} is no setting")
        before = there.get(key, "")
        if not value and not before:
            others = ", ".join(sorted(there)) or "nothing"
            raise ClusterRefusal(f"{key} is not set for the cluster, {others} is")
        if len(value.encode()) > VALUE_BYTES_MOST or (key not in there and len(there) >= MOST):
            raise ClusterRefusal(f"a value has {VALUE_BYTES_MOST} bytes at most, and there are {MOST} settings at most")
        self._check_release(lambda broker: broker.reads_settings, "settings")
        if value != before:
            ctx.write(ev.SettingChanged(key, value, user, ctx.message_time_ms))
            was, now = before or "as in the files", value or "as in the files"
            ctx.note("info", f"setting {key} of the cluster: {was} -> {now}, by {user or 'somebody on a machine'}")
        ctx.answer(AnswerRequest(number, True, f"{key} of the cluster", {"key": key, "old": before, "new": value}))

    def change_login(self, number: int, asked: ChangeLogin) -> None:
        """Have it kept, or not any more. Raises ClusterRefusal."""
        ctx, (key, value, user, is_new, replaces) = self._ctx, asked
        there = ctx.map.settings
        prefix = next((prefix for prefix in LOGINS_MOST if key.startswith(prefix)), "")
        if not prefix:
            raise ClusterRefusal(f"{key} is neither a user nor a token")
        what = f"{prefix.rstrip('/')} {key.removeprefix(prefix)}"
        before = there.get(key, "")
        if is_new and before:
            raise ClusterRefusal(f"the cluster has a {what} already")
        if not before and (replaces or not value):
            raise ClusterRefusal(f"the cluster has no {what}")
        most = LOGINS_MOST[prefix]
        if len(value.encode()) > LOGIN_BYTES_MOST or (not before and len(ctx.map.secrets(prefix)) >= most):
            raise ClusterRefusal(
                f"a cluster has {most} {prefix.rstrip('/')}s at most, each of {LOGIN_BYTES_MOST} bytes at most"
            )
        self._check_release(lambda broker: broker.reads_logins, "users")
        if value != before:
            ctx.write(ev.SettingChanged(key, value, user, ctx.message_time_ms))
            done = ("changed" if before else "added") if value else "removed"
            ctx.note("info", f"{what} of the cluster: {done}, by {user or 'somebody on a machine'}")
        ctx.answer(AnswerRequest(number, True, f"{what} of the cluster", {"key": key, "was_there": bool(before)}))

    def _check_release(self, reads: Callable[[ReportedBroker], bool], things: str) -> None:
        reports = self._ctx.reports
        silent = sorted(reports.backups_of_default() - reports.brokers.keys())
        if silent:
            raise EarlyRefusal(
                f"{', '.join(silent)} does not report to the controller: is it just starting, or is its address not in"
                " ha.brokers-url of all the others?"
            )
        older = sorted(name for name, broker in reports.brokers.items() if not reads(broker))
        if older:
            raise ClusterRefusal(
                f"{', '.join(older)} is of a release that knows no {things} of a cluster: upgrade it first"
            )
