"""Definitions as a file: what is read of one, what has to be done for it, and what RabbitMQ's come to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qpid_ha_agent.cli.output import yaml_text
from qpid_ha_broker.definitions.document import (
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    QueueDefinition,
    ReplicaPolicy,
    SetDefinition,
    SettingDefinition,
    TokenDefinition,
    UserDefinition,
    definitions_of,
    read_definitions,
)
from qpid_ha_broker.definitions.plan import ImportPlan, plan_import
from qpid_ha_broker.definitions.rabbitmq import read_rabbitmq
from qpid_ha_config.errors import ConfigError
from qpid_ha_config.users import make_user

ORDERS = QueueDefinition("orders", "", {"qpid.max_count": 100})
EVENTS = ExchangeDefinition("events", "topic", {})
BOUND = BindingDefinition("events", "orders", "a.#", {})
AUDIT = SetDefinition("audit", "group", 3, 2, "b")
RULES = SettingDefinition("acl.rules", ["allow alice consume orders"])
OLGA = UserDefinition("olga", make_user("olga", "geheim"))
TOKEN = TokenDefinition("grafana", "viewer", "0" * 64)
ALL = Definitions((AUDIT,), (ReplicaPolicy("audit-*", 5),), (EVENTS,), (ORDERS,), (BOUND,), (RULES,), (OLGA,), (TOKEN,))


def names() -> st.SearchStrategy[str]:
    return st.text("abc.-äß '", min_size=1, max_size=8)


def arguments() -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(names(), st.text(max_size=9) | st.integers(0, 9) | st.booleans(), max_size=2)


def definitions() -> st.SearchStrategy[Definitions]:
    def lists(kind: Any, *fields: st.SearchStrategy[Any], keys: int = 1) -> st.SearchStrategy[tuple[Any, ...]]:
        entries = st.builds(kind, *fields)
        return st.lists(entries, max_size=2, unique_by=lambda entry: entry[:keys]).map(tuple)

    counts = st.none() | st.integers(1, 9)
    return st.builds(
        Definitions,
        lists(SetDefinition, names(), st.sampled_from(["primary", "group"]), counts, counts, st.none() | names()),
        lists(ReplicaPolicy, names(), st.integers(1, 9)),
        lists(ExchangeDefinition, names(), st.sampled_from(["direct", "topic"]), arguments()),
        lists(QueueDefinition, names(), st.sampled_from(["", "audit"]), arguments()),
        lists(BindingDefinition, names(), names(), names() | st.just(""), arguments(), keys=3),
        st.sampled_from(
            [(), (RULES,), (SettingDefinition("auto-create", False), SettingDefinition("sessions.max", 0))]
        ),
        st.sampled_from([(), (OLGA,)]),
        st.sampled_from([(), (TOKEN,)]),
    )


@given(definitions(), st.booleans())
@example(Definitions(queues=(QueueDefinition("a", "", {"a": "\x85 \u2028 \u2029"}),)), False)
def test_what_was_written_is_read_again(written: Definitions, as_json: bool) -> None:
    document = written.as_document()
    text = json.dumps(document) if as_json else yaml_text(document)
    assert read_definitions("f", text) == written


@given(definitions())
def test_a_cluster_that_has_what_the_file_says_is_left_alone(wanted: Definitions) -> None:
    kept = Definitions(wanted.sets, wanted.policies, (), wanted.queues, wanted.bindings)
    there = len(kept.sets) + bool(kept.policies) + len(kept.queues) + len(kept.bindings)
    assert plan_import(kept, kept) == ImportPlan((), (), there)


def steps(plan: ImportPlan) -> list[tuple[str, str]]:
    return [(step.action, step.thing) for step in plan.steps]


def test_what_is_missing_is_made_in_an_order_that_a_broker_takes() -> None:
    plan = plan_import(Definitions(), ALL)
    assert (plan.conflicts, plan.unchanged) == ((), 0)
    assert steps(plan) == [
        ("create", "policies of replicas"),
        ("create", "set audit"),
        ("create", "topic exchange events"),
        ("create", "queue orders"),
        ("create", "binding events -> orders with key 'a.#'"),
        ("create", "user olga"),
        ("create", "token grafana"),
        ("create", "setting acl.rules"),
    ]
    assert not any(OLGA.verifiers in step.details or TOKEN.digest in step.details for step in plan.steps)
    assert [(step.method, dict(step.params)) for step in plan.steps][1] == (
        "sets",
        {
            "action": "create",
            "name": "audit",
            "strategy": "group",
            "min_replicas": 3,
            "min_in_sync": 2,
            "preferred": "b",
        },
    )


def test_an_exchange_is_made_behind_its_alternate() -> None:
    wanted = tuple(
        ExchangeDefinition(name, "fanout", {"qpid.alternate_exchange": alternate} if alternate else {})
        for name, alternate in (("a", "b"), ("b", "c"), ("c", ""), ("d", "amq.fanout"))
    )
    plan = plan_import(Definitions(), Definitions(exchanges=wanted))
    assert [thing.split()[-1] for _, thing in steps(plan)] == ["c", "b", "a", "d"]


def test_a_circle_of_alternates_is_left_to_the_broker_and_ends() -> None:
    wanted = tuple(
        ExchangeDefinition(name, "fanout", {"qpid.alternate_exchange": alternate})
        for name, alternate in (("a", "b"), ("b", "a"))
    )
    assert len(plan_import(Definitions(), Definitions(exchanges=wanted)).steps) == 2


@pytest.mark.parametrize(
    ("there", "wanted", "updated", "word"),
    [
        (
            Definitions(queues=(ORDERS._replace(arguments={"qpid.max_count": 1, "x": "y"}),)),
            Definitions(queues=(ORDERS,)),
            {"action": "update", "name": "orders", "arguments": {"qpid.max_count": 100, "x": None}},
            "--update",
        ),
        (
            Definitions(bindings=(BOUND._replace(arguments={"x-match": "any"}),)),
            Definitions(bindings=(BOUND,)),
            {"action": "bind", "name": "events", "queue": "orders", "key": "a.#", "arguments": {}},
            "--update",
        ),
        (
            Definitions(policies=(ReplicaPolicy("*", 3),)),
            Definitions(policies=(ReplicaPolicy("*", 2),)),
            {"action": "policies", "policies": [["*", 2]]},
            "--update",
        ),
        (
            Definitions(settings=(RULES._replace(value=["allow all all"]),)),
            Definitions(settings=(RULES,)),
            {"action": "set", "key": "acl.rules", "value": ["allow alice consume orders"]},
            "--update",
        ),
        (Definitions(sets=(AUDIT._replace(min_replicas=2),)), Definitions(sets=(AUDIT,)), None, "min_replicas 2"),
        (Definitions(exchanges=(EVENTS._replace(kind="direct"),)), Definitions(exchanges=(EVENTS,)), None, "direct"),
        (Definitions(queues=(ORDERS,)), Definitions(queues=(ORDERS._replace(set="audit"),)), None, "stays there"),
        (Definitions(), Definitions(exchanges=(EVENTS._replace(name="amq.mine"),)), None, "amq."),
    ],
)
def test_what_is_there_as_something_else_is_a_conflict_that_an_update_may_solve(
    there: Definitions, wanted: Definitions, updated: dict[str, Any] | None, word: str
) -> None:
    plan = plan_import(there, wanted)
    assert plan.steps == ()
    (conflict,) = plan.conflicts
    assert word in conflict.problem
    updating = plan_import(there, wanted, update=True)
    assert [dict(step.params) for step in updating.steps] == ([] if updated is None else [updated])
    assert len(updating.conflicts) == (updated is None)


def test_true_is_not_one() -> None:
    there, wanted = Definitions(queues=(ORDERS._replace(arguments={"x": 1}),)), {"x": True}
    assert len(plan_import(there, Definitions(queues=(ORDERS._replace(arguments=wanted),))).conflicts) == 1


def test_what_belongs_to_clients_and_what_is_always_there_is_not_exported() -> None:
    queues = [
        {"name": "orders", "set": "default", "arguments": {"qpid.max_count": 1, "qpid.created_by": "ann"}},
        {"name": "audit.1", "set": "audit", "arguments": {"qpid.resource-set": "audit"}},
        {"name": "subscription:c:l", "set": "default", "arguments": {"qpid.subscription": "c:l"}},
        {"name": "temporary.1", "set": "default", "arguments": {"qpid.auto_delete": True}},
    ]
    bindings: list[dict[str, Any]] = [
        {"queue": name, "key": "k", "arguments": {}} for name in ("orders", "subscription:c:l")
    ]
    exchanges: list[dict[str, Any]] = [
        {"name": "amq.topic", "kind": "topic", "arguments": {}, "bindings": bindings},
        {"name": "events", "kind": "fanout", "arguments": {}, "bindings": []},
    ]
    sets: list[dict[str, Any]] = [
        {"name": "default"},
        {"name": "audit", "strategy": "primary", "min_replicas": 0, "min_in_sync": 2, "preferred": ""},
    ]
    policies: list[dict[str, Any]] = [
        {"pattern": "a*", "replicas": 2, "origin": "of the cluster"},
        {"pattern": "*", "replicas": 3, "origin": "the setting ha.min-replicas of a"},
    ]
    settings: list[dict[str, object]] = [
        {"key": "sessions.max", "own": 10_000, "cluster": 5, "in_force": 5},
        {"key": "name", "own": "a", "cluster": None, "in_force": "a"},
    ]
    assert definitions_of(queues, exchanges, sets, policies, settings) == Definitions(
        (SetDefinition("audit", min_in_sync=2),),
        (ReplicaPolicy("a*", 2),),
        (ExchangeDefinition("events", "fanout", {}),),
        (QueueDefinition("orders", "", {"qpid.max_count": 1}), QueueDefinition("audit.1", "audit", {})),
        (BindingDefinition("amq.topic", "orders", "k", {}),),
        (SettingDefinition("sessions.max", 5),),
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "f: expected `format: 1`"),
        ("queues: []", "f: format: is missing"),
        ("format: 2", "f: format: is 2"),
        ("format: 1\nqeues: []", "f:2: there is no section 'qeues'; did you mean queues?"),
        ("format: 1\nqueues:\n- nam: a", "f:3: queues: there is no field 'nam'; did you mean name?"),
        ("format: 1\nqueues:\n- set: a", "f:3: queues: name is missing"),
        ("format: 1\nqueues: {a: b}", "f:2: queues: expected a list"),
        ("format: 1\nqueues:\n- orders", "f:3: queues: expected name, set, arguments"),
        ("format: 1\nqueues:\n- name: 5", "f:3: name: expected a text, found 5"),
        ("format: 1\nqueues:\n- name: a\n- name: a", "f:4: queues: the same is defined twice"),
        ("format: 1\nqueues:\n- name: a\n  name: b", "f:4:3: the key 'name' is there twice"),
        ("format: 1\nqueues:\n- name: a\n  arguments: {x: [1]}", "f:4: x: a value is a text"),
        ("format: 1\nqueues:\n- name: a\n  arguments: {1: x}", "f:4: arguments: a name is a text"),
        ("format: 1\nexchanges:\n- {name: a, kind: topc}", "f:3: kind: there is no 'topc'; did you mean topic?"),
        ("format: 1\nsets:\n- {name: a, min-replicas: 0}", "f:3: min-replicas: expected a whole number"),
        ("format: 1\nsets:\n- {name: a, strategy: grup}", "f:3: strategy: there is no 'grup'; did you mean group?"),
        (
            "format: 1\nsettings:\n- {key: sesions.max, value: 5}",
            "f:3: sesions.max: unknown key; did you mean sessions.max?",
        ),
        ("format: 1\nsettings:\n- {key: sessions.max, value: many}", "f:3: sessions.max: 'many' is not a whole number"),
        ("format: 1\nsettings:\n- {key: listen, value: x}", "f:3: listen: it is no setting of a cluster"),
        ("format: 1\nsettings:\n- {key: acl.rules, value: [alow]}", "f:3: acl.rules: "),
        ("format: 1\nusers:\n- {name: olga, verifiers: geheim}", "f:3: users, olga: a verifier is MECHANISM"),
        (f"format: 1\ntokens:\n- {{name: x, role: wiever, digest: '{'0' * 64}'}}", "f:3: tokens, x: there is no role"),
        ("format: 1\nqueues: &a\n- name: b\nbindings: *a", "f:4:13: references"),
        ("format: 1\nqueues: [", "f:2:10: it is not YAML"),
        ("format: 1\nqueues: " + "[" * 5000, "f: it is nested too deeply"),
    ],
)
def test_a_slip_is_told_with_file_and_line(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_definitions("f", text)
    assert str(raised.value).startswith(error)


RABBITMQ = {
    "vhosts": [{"name": "/"}, {"name": "other"}],
    "users": [{"name": "guest"}],
    "permissions": [],
    "queues": [
        {
            "name": "orders",
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "arguments": {
                "x-queue-type": "quorum",
                "x-max-length": 10,
                "x-delivery-limit": 3,
                "x-dead-letter-exchange": "dead",
                "x-dead-letter-routing-key": "k",
            },
        },
        {"name": "fast", "vhost": "/", "arguments": {"x-max-priority": 255, "x-expires": 1500, "x-message-ttl": 5}},
        {"name": "log", "vhost": "/", "arguments": {"x-queue-type": "stream"}},
        {
            "name": "full",
            "vhost": "/",
            "arguments": {"x-max-length-bytes": 9, "x-overflow": "reject-publish", "x-single-active-consumer": True},
        },
        {"name": "reply", "vhost": "/", "auto_delete": True, "arguments": {}},
        {"name": "elsewhere", "vhost": "other", "arguments": {}},
    ],
    "exchanges": [
        {"name": "dead", "vhost": "/", "type": "fanout", "arguments": {}},
        {"name": "events", "vhost": "/", "type": "topic", "arguments": {"alternate-exchange": "dead"}},
        {"name": "hashed", "vhost": "/", "type": "x-consistent-hash", "arguments": {}},
    ],
    "bindings": [
        {"source": "events", "vhost": "/", "destination": "orders", "destination_type": "queue", "routing_key": "a.#"},
        {"source": "events", "vhost": "/", "destination": "dead", "destination_type": "exchange", "routing_key": ""},
        {"source": "hashed", "vhost": "/", "destination": "orders", "destination_type": "queue", "routing_key": "1"},
        {"source": "amq.headers", "vhost": "/", "destination": "fast", "destination_type": "queue", "routing_key": ""},
    ],
}


def test_definitions_of_rabbitmq_become_ours_and_what_has_no_counterpart_is_told() -> None:
    converted, notes = read_rabbitmq("f", json.dumps(RABBITMQ))
    assert {queue.name: queue.arguments for queue in converted.queues} == {
        "orders": {
            "qpid.max_count": 10,
            "qpid.delivery_limit": 3,
            "qpid.alternate_exchange": "dead",
            "qpid.policy_type": "ring",
        },
        "fast": {
            "qpid.priorities": 10,
            "qpid.auto_delete": True,
            "qpid.auto_delete_delay_s": 1.5,
            "qpid.message_ttl_ms": 5,
        },
        "full": {"qpid.max_size": 9, "qpid.policy_type": "reject", "qpid.single_active_consumer": True},
    }
    assert converted.exchanges == (
        ExchangeDefinition("dead", "fanout", {}),
        ExchangeDefinition("events", "topic", {"qpid.alternate_exchange": "dead"}),
    )
    assert [binding[:3] for binding in converted.bindings] == [("events", "orders", "a.#"), ("amq.match", "fast", "")]
    for word in ("routing-key", "log is a stream", "reply goes with", "x-consistent-hash", "dead is bound", "1 user: "):
        assert any(word in note for note in notes), word
    assert read_definitions("f", json.dumps(converted.as_document())) == converted


@pytest.mark.parametrize(
    ("text", "vhost", "error"),
    [
        ("{", "/", "f: it is no JSON"),
        ("[]", "/", "f: queues: no list"),
        ('{"queues": [5]}', "/", "f: queues: expected a list of objects"),
        ('{"queues": [{"arguments": {}}]}', "/", "f: queues: an entry has no name"),
        (json.dumps(RABBITMQ), "othr", "f: vhosts: there is no virtual host othr; did you mean other?"),
    ],
)
def test_what_is_no_file_of_rabbitmq_is_refused(text: str, vhost: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_rabbitmq("f", text, vhost)
    assert str(raised.value).startswith(error)
