"""Stories about whom the resource agent promotes, and what it says when it does not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ocf_resource import LOST, Resource, says_first
from qpid_ha_agent.ocf import agent as agent_module
from qpid_ha_agent.ocf import memory as memory_module
from qpid_ha_agent.ocf.agent import OcfAgent
from qpid_ha_agent.ocf.codes import OcfCode
from qpid_ha_agent.pacemaker import attributes, scores
from qpid_ha_agent.pacemaker import hindrance as hindrance_module
from qpid_ha_agent.service import Service
from qpid_ha_agent.sight import Sight
from qpid_ha_agent.vip_action import VirtualIp
from scripted_broker import ScriptedBroker
from scripted_pacemaker import NODE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the agent wants to be root, as Pacemaker's agents are")


# --- who is promoted


def test_a_candidate_makes_way_for_a_better_one_and_raises_its_score(resource: Resource) -> None:
    resource.up(**LOST)
    resource.pacemaker.publish("n2", "3:8:90:connecting:in-sync ")
    found = resource.promote(NODE, "n2")
    assert found.code is OcfCode.ERR_GENERIC
    assert says_first(found, "n2 is the better choice", "epoch 8")
    assert int(resource.pacemaker.score("n2")) > int(resource.pacemaker.score())
    assert resource.do("monitor").code is OcfCode.SUCCESS
    resource.pacemaker.publish("n2", "3:7:105:connecting:in-sync ")
    resource.set(max_lag="4")
    assert resource.promote(NODE, "n2").code is OcfCode.ERR_GENERIC
    resource.set(max_lag="5")
    assert resource.promote(NODE, "n2").code is OcfCode.SUCCESS


def test_a_refused_broker_is_held_back_whatever_pacemaker_makes_of_it_and_nobody_makes_way_for_it(
    resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It demotes or restarts it, monitors it anew, and would choose it again; two could send each other ahead."""
    resource.up(**LOST | {"restored": "dirty"})
    assert resource.pacemaker.score() == "100"
    assert published(resource) == "3:7:100:connecting:in-sync:restored "
    resource.broker.says(**LOST | {"restored": "dirty", "others": {"n3": None}})
    assert resource.promote(NODE).reason == "n3 cannot be asked"
    for action in ("demote", "monitor", "stop", "start", "monitor"):
        resource.do(action)
        assert resource.pacemaker.score() in ("-INFINITY", "")
    assert published(resource) == ""

    monkeypatch.setattr(memory_module, "HELD_BACK_S", 0.0)
    resource.do("monitor")
    assert resource.pacemaker.score() == "100"
    assert published(resource) == "3:7:100:connecting:in-sync:restored ", "it was not primary, and handed nothing over"


EMPTY = {"name": NODE, "state": "connecting", "generation": 0, "lsn": 0}


@pytest.mark.parametrize("status", [LOST | {"restored": "dirty"}, EMPTY], ids=["restored", "empty"])
def test_who_has_to_ask_the_others_waits_until_those_that_run_answer(
    resource: Resource, status: dict[str, object]
) -> None:
    """Pacemaker has started them just before. A refusal would restart this one, and the next be refused for that."""
    resource.up(**status | {"others": {"n2": 3, "n3": 5}})
    assert resource.promote(NODE, "n2", notify_start_uname="n3").code is OcfCode.SUCCESS


def test_one_that_runs_and_does_not_answer_is_waited_for_a_while_and_one_that_is_stopped_is_not(
    resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "COMPANY_S", 0.1)
    resource.up(**LOST | {"restored": "dirty", "others": {"n2": 0, "n3": None}})
    found = resource.promote(NODE, "n2", "n3")
    assert (found.reason, "3 brokers run" in found.log) == ("n3 cannot be asked", True)
    assert resource.memory.read().standing_refusal == [NODE, "n2"]
    found = resource.promote(NODE, "n2", "n3", notify_stop_uname="n3")
    assert (found.reason, "brokers run" in found.log) == ("n3 cannot be asked", False)


def test_who_has_just_lost_its_primary_waits_for_nobody(resource: Resource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "COMPANY_S", 0.1)
    resource.up(**LOST | {"others": {"n2": 0, "n3": None}})
    found = resource.promote(NODE, "n2", "n3")
    assert (found.reason, "brokers run" in found.log) == ("n3 cannot be asked", False)
    assert resource.memory.read().standing_refusal == [NODE, "n2"]


def published(resource: Resource) -> str:
    """What others read of it before a promotion."""
    resource.do("notify", notify_type="pre", notify_operation="promote")
    return resource.pacemaker.position()


def test_the_store_that_was_chosen_leads_whatever_others_hold(resource: Resource) -> None:
    resource.up(**LOST | {"restored": "dirty", "chosen": True})
    assert resource.pacemaker.score() == "800"
    resource.pacemaker.publish("n2", "3:7:101:connecting:in-sync")
    assert resource.promote(NODE, "n2").code is OcfCode.SUCCESS


@pytest.mark.parametrize("trouble", ["fail", "hang"])
def test_nobody_is_promoted_while_the_others_cannot_be_heard(
    resource: Resource, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(attributes, "TOOL_TIMEOUT_S", 0.2)
    resource.up(**LOST)
    getattr(resource.pacemaker, trouble)()
    found = resource.promote(NODE, "n2")
    assert (found.code, says_first(found, "attrd_updater")) == (OcfCode.ERR_GENERIC, True)


def test_a_refused_promotion_gives_the_brokers_sentence_and_is_not_tried_again_at_once(
    tmp_path: Path, resource: Resource
) -> None:
    with ScriptedBroker("b", refuse="n2 has what this broker lacks: start it") as broker:
        refused = Resource(broker, resource.pacemaker, resource._capfd)
        refused.up(**LOST)
        found = refused.promote(NODE)
        assert (found.code, found.reason) == (OcfCode.ERR_GENERIC, "n2 has what this broker lacks: start it")
        assert resource.pacemaker.score() == "-INFINITY"

        assert refused.do("demote").code is OcfCode.SUCCESS, "Pacemaker clears up"
        refused.do("monitor")
        assert resource.pacemaker.score() == "200"
        assert published(refused) == "3:7:100:connecting:in-sync ", "it was not primary, and handed nothing over"


def test_a_dead_broker_is_not_chosen_again_until_it_is_started(resource: Resource) -> None:
    """Without a watch nobody else takes the score of a dead broker back; that of a primary is the highest one."""
    resource.up(**LOST)
    assert resource.pacemaker.score() == "200"
    resource.broker.send(signal.SIGKILL)
    resource.broker.await_end()

    assert resource.promote(NODE).code is OcfCode.NOT_RUNNING
    assert resource.pacemaker.score() == "-INFINITY"
    assert resource.do("demote").code is OcfCode.SUCCESS

    resource.up(**LOST)
    assert resource.pacemaker.score() == "200"


def test_an_operator_can_force_a_promotion_once(resource: Resource) -> None:
    resource.up(**LOST | {"members": ["n2"]})
    resource.pacemaker.publish("n2", "3:7:900:connecting:in-sync ")
    assert resource.promote(NODE, "n2").code is OcfCode.ERR_GENERIC
    with resource.memory.changed() as memory:
        memory.is_forced = True
    resource.do("monitor")
    assert resource.pacemaker.score() == "800"
    assert resource.promote(NODE, "n2").code is OcfCode.SUCCESS
    assert not resource.memory.read().is_forced


def test_a_broker_whose_log_is_newer_than_the_record_is_not_even_asked_and_crm_mon_shows_why(
    resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would refuse, and Pacemaker would restart it for that: what it has in memory only would be gone."""
    monkeypatch.setattr(hindrance_module, "TOLD_AFTER_S", 0.0)
    resource.up(**LOST)
    assert resource.pacemaker.score() == "200"
    resource.broker.record.unlink()
    resource.do("monitor")
    monkeypatch.setattr(scores, "FALL_AFTER_S", 0.0)
    resource.do("monitor")
    assert resource.pacemaker.score() == "-INFINITY"
    resource.do("monitor")
    assert "the coordinator's record is empty" in resource.memory.read().hindrance


def test_neighbours_hear_where_the_address_is_before_the_broker_leads(
    resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who connects meanwhile would else send to where it was, and TCP tries again after a second."""
    done = list[str]()
    monkeypatch.setattr(VirtualIp, "prepare", lambda _self, _was_free: None)
    monkeypatch.setattr(VirtualIp, "bring_up", lambda _self: done.append("up"))
    monkeypatch.setattr(VirtualIp, "announce", lambda _self, count=3: done.append(f"announced {count}"))
    resource.up(**LOST)
    promote = OcfAgent._promote_broker

    def promoted(agent: OcfAgent, service: Service, limit_s: float) -> Sight:
        done.append("promoted")
        return promote(agent, service, limit_s)

    monkeypatch.setattr(OcfAgent, "_promote_broker", promoted)
    assert resource.promote(NODE).code is OcfCode.SUCCESS
    assert done == ["up", "announced 1", "promoted", "announced 3"]
