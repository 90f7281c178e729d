"""Subscribers of an exchange in clusters of proxies: their checkers find bugs that are planted for them, soon."""

from __future__ import annotations

import pytest

from qpid_ha_broker.amqp.relaying.upstream import Upstream, UpstreamLink
from simulation.brokers.plan import draw_proxies_plan
from simulation.brokers.world import run_proxies
from simulation.planted import found_by

WITHOUT_FAULTS, WITH_FAULTS = 56, 12
"""Seeds of clusters that have subscribers."""


def test_some_clusters_of_proxies_have_subscribers() -> None:
    assert 10 < sum(draw_proxies_plan(seed).subscribers > 0 for seed in range(200)) < 40


def test_subscribers_get_what_is_published_to_their_exchange() -> None:
    outcome = run_proxies(draw_proxies_plan(WITH_FAULTS))

    assert outcome.problem == ""
    assert outcome.to_subscribers > 100  # else there was nothing to check


def test_a_subscription_that_ends_when_its_subscriber_only_detaches_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _ignores_how_a_link_ends(monkeypatch, closed=True)

    problem = found_by(monkeypatch, [draw_proxies_plan(WITHOUT_FAULTS)]).problem
    assert "which it has not ended" in problem or "is gone, and nobody has ended it" in problem  # who notices it first


def test_a_subscription_that_outlives_its_close_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _ignores_how_a_link_ends(monkeypatch, closed=False)

    assert "has unsubscribed since" in found_by(monkeypatch, [draw_proxies_plan(WITHOUT_FAULTS)]).problem


def _ignores_how_a_link_ends(monkeypatch: pytest.MonkeyPatch, *, closed: bool) -> None:
    """The primary is always told the same, whatever the client did."""
    detach = Upstream.detach

    def detach_so(self: Upstream, link: UpstreamLink, *, closed: bool = closed) -> None:
        detach(self, link, closed=always)

    always = closed
    monkeypatch.setattr(Upstream, "detach", detach_so)
