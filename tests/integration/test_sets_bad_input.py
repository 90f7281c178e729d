"""What an operator of many resource sets gets wrong: a clear error, from real brokers, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import older_release
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster
from sets_cluster import SetTraffic, change, create_queue, create_set, sets_of, wait_whole

LIMIT_S = 60.0
REFUSED, USAGE = 1, 2


def qpid_ha(cluster: RunningCluster, by: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Asking that broker."""
    environment = {**os.environ, "QPID_HA_SOCKET": str(cluster.broker(by).control_socket)}
    command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_S, check=False)


def broker_row(cluster: RunningCluster, name: str) -> dict[str, object]:
    """As `qpid-ha brokers` shows it; empty: there is none."""
    rows = cluster.broker(0).ask("brokers")["answer"]
    return next((row for row in rows if row["name"] == name), {})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """`orders` is on broker1, which leads it, and broker2; `wide` on 1, 2 and 3; broker4 is drained."""
    settings = {"ha": {"failure-timeout": "1s"}}
    with RunningCluster(tmp_path_factory.mktemp("bad"), 4, settings=settings) as cluster:
        cluster.form()
        names = [broker.name for broker in cluster.brokers]
        create_set(cluster, "orders", replicas=names[:2], min_replicas=2, preferred=names[0])
        create_set(cluster, "wide", replicas=names[:3], min_replicas=3)
        change(cluster, 0, "brokers", "drain", name=names[3])
        wait_whole(cluster, 0, "orders", "wide")
        yield cluster


@pytest.mark.parametrize(
    ("words", "exit_code", "parts"),
    [
        # a set name that exists, or cannot be one
        ("set create orders", REFUSED, ["there is a resource set orders already"]),
        ("set create default", REFUSED, ["there is a resource set default already"]),
        ("set create Orders/new", REFUSED, ["lower-case"]),
        # an unknown one
        ("set show nothing", REFUSED, ["no set nothing", "qpid-ha set list"]),
        ("set delete nothing", REFUSED, ["no resource set nothing", "there are orders, wide"]),
        ("set transfer nothing", REFUSED, ["no resource set nothing", "there are orders, wide"]),
        ("set add-replica nothing", REFUSED, ["no resource set nothing", "there are orders, wide"]),
        ("set remove-replica nothing broker1", REFUSED, ["no resource set nothing", "there are orders, wide"]),
        ("replicas trim nothing", REFUSED, ["no resource set nothing", "there are orders, wide"]),
        ("queue create q --argument qpid.resource-set=nothing", REFUSED, ["nothing", "there is no", "set", "create"]),
        # a replica on a broker that is unknown or drained
        ("set create new --replica nobody", REFUSED, ["no broker nobody", "there are broker1, broker2"]),
        ("set create new --replica broker4", REFUSED, ["broker4 is being drained", "qpid-ha undrain broker4"]),
        ("set create new --preferred broker4", REFUSED, ["broker4 is being drained", "qpid-ha undrain broker4"]),
        ("set add-replica orders nobody", REFUSED, ["no broker nobody", "there are broker1, broker2"]),
        ("set add-replica orders broker4", REFUSED, ["broker4 is being drained", "qpid-ha undrain broker4"]),
        ("drain nobody", REFUSED, ["no broker nobody", "there are broker1, broker2"]),
        ("brokers forget nobody", REFUSED, ["no broker nobody", "there are broker1, broker2"]),
        ("queue create q --argument qpid.cluster.primary=nobody", REFUSED, ["nobody", "there is no", "broker1"]),
        # more replicas than brokers
        ("set create new --min-replicas 9", REFUSED, ["new wants 9 replicas, and there are 4 brokers"]),
        ("set create new --min-in-sync 9", REFUSED, ["new wants 9 replicas, and there are 4 brokers"]),
        ("queue create q --argument qpid.min-replicas=9", REFUSED, ["9"]),
        ("replicas policies *=0", REFUSED, ["'*': 0 is no policy", "1 to 100 replicas"]),
        ("replicas policies audit-*", USAGE, ["audit-*"]),
        # a transfer to a broker without a ready replica
        ("set transfer orders broker3", REFUSED, ["broker3 has no replica of orders", "ready are: broker2"]),
        ("set transfer orders broker4", REFUSED, ["broker4 has no replica of orders", "ready are: broker2"]),
        # a drain that would leave too few
        ("drain broker2", REFUSED, ["too few for 1 sets (wide wants 3)", "start or undrain 1 more", "--force"]),
        ("set remove-replica orders broker2", REFUSED, ["orders wants 2 replicas", "1 would be left", "--force"]),
        # rules that contradict
        ("set resource-sets a*=orders,a*=wide", REFUSED, ["resource-sets", "a*", "orders and in wide"]),
        ("set replica-policies a*=2,a*=3", REFUSED, ["replica-policies", "a* wants 2 and 3"]),
        ("replicas policies a*=2 a*=3", REFUSED, ["two policies for a*"]),
        # a placement that is not there
        ("set ha.placement spred", REFUSED, ["ha.placement", "did you mean spread?"]),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_to_do(
    cluster: RunningCluster, words: str, exit_code: int, parts: list[str]
) -> None:
    before = sets_of(cluster.broker(0)).keys()

    by = 0 if words.startswith("queue") else 1  # queues are made at the primary of `default`
    told = qpid_ha(cluster, by, *words.split())

    assert (told.returncode, told.stdout) == (exit_code, ""), told
    assert [part for part in parts if part not in told.stderr] == [], told.stderr
    assert "Traceback" not in told.stderr
    assert sets_of(cluster.broker(0)).keys() == before
    assert broker_row(cluster, "broker2")["state"] == "up"


def test_a_drain_that_leaves_too_few_goes_on_by_force_and_loses_nothing(cluster: RunningCluster) -> None:
    create_queue(cluster, 0, "q-wide", "wide")
    with SetTraffic(cluster, "q-wide") as traffic:
        traffic.wait_confirmed(20)
        told = qpid_ha(cluster, 1, "drain", "broker2", "--force", "--no-wait")
        assert told.returncode == 0, told
        cluster.wait_until(lambda: broker_row(cluster, "broker2")["primaries"] == 0, "broker2 leads nothing")
        assert qpid_ha(cluster, 1, "undrain", "broker2").returncode == 0
        wait_whole(cluster, 0, "orders", "wide")
        traffic.wait_confirmed(20)
        traffic.settle()


def plug_in(directory: Path) -> None:
    """A distribution with two placements of which nothing comes: one raises, one names a broker that is not there."""
    info = directory / "odd_placement-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-placement\nVersion: 1.0\n")
    names = "raises = odd_placement:raises\nnonsense = odd_placement:nonsense\n"
    (info / "entry_points.txt").write_text(f"[qpid_ha.placement]\n{names}")
    (directory / "odd_placement.py").write_text(
        "from qpid_ha_broker.cluster.placement import Ranked\n\n\n"
        'def raises(placed, brokers):\n    raise RuntimeError("no such rack")\n\n\n'
        'def nonsense(placed, brokers):\n    return [Ranked("nobody", "why not")]\n'
    )


def test_a_placement_that_raises_or_answers_nonsense_is_said_in_the_log_and_spread_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), *sys.path]))
    with RunningCluster(tmp_path, settings={"ha": {"placement": "raises"}}) as cluster:
        cluster.form()
        assert qpid_ha(cluster, 1, "set", "create", "one").returncode == 0
        assert len(wait_whole(cluster, 0, "one")["one"]["replicas"]) == 3
        raised = "placement raises: it raised RuntimeError: no such rack; `spread` serves"
        assert raised in cluster.broker(0).log()

        assert qpid_ha(cluster, 0, "set", "ha.placement", "nonsense").returncode == 0
        assert qpid_ha(cluster, 1, "set", "create", "two").returncode == 0
        assert len(wait_whole(cluster, 0, "two")["two"]["replicas"]) == 3
        answered = "placement nonsense: it ranks 'nobody', which cannot have a replica of two; `spread` serves"
        assert answered in cluster.broker(0).log()


def test_a_broker_that_is_back_under_its_name_with_another_uuid_gets_what_it_had_again(tmp_path: Path) -> None:
    """Its disk was changed. The operator sees why it had to be filled."""
    settings = {"ha": {"failure-timeout": "1s"}}
    with RunningCluster(tmp_path, settings=settings, stores=tmp_path / "stores") as cluster:
        cluster.form()
        create_set(cluster, "orders", preferred="broker2")
        wait_whole(cluster, 0, "orders")
        create_queue(cluster, 0, "q", "orders")
        with SetTraffic(cluster, "q") as traffic:
            traffic.wait_confirmed(50)
            cluster.kill(2)
            (tmp_path / "stores" / "broker3").rename(tmp_path / "old-disk")
            cluster.restart(2)
            cluster.wait_until(lambda: "another UUID" in qpid_ha(cluster, 1, "history", "broker3").stdout, "it is said")
            wait_whole(cluster, 0, "orders")
            traffic.wait_confirmed(50)
            traffic.settle()


def test_a_second_broker_of_a_name_that_lives_is_refused_and_the_first_one_stays(tmp_path: Path) -> None:
    """Somebody has copied a configuration, and changed the address only."""
    with RunningCluster(tmp_path) as cluster:
        cluster.form()
        create_set(cluster, "orders", preferred="broker2")
        wait_whole(cluster, 0, "orders")
        uuid = broker_row(cluster, "broker3")["uuid"]
        (tmp_path / "twin").mkdir()
        settings = yaml.safe_load(cluster.broker(2).config.read_text())
        own = {"listen": ["amqp://127.0.0.1:0"], "control-socket": str(cluster.broker(2).control_socket) + "2"}
        twin = LocalBroker(tmp_path / "twin", {**settings, **own}, has_agent=False)
        twin.start()
        try:
            said = "another broker is called broker3: give each its own `name`"
            cluster.wait_until(lambda: said in twin.log(), "it is refused")
        finally:
            twin.terminate()
            twin.wait()

        assert broker_row(cluster, "broker3")["uuid"] == uuid
        wait_whole(cluster, 0, "orders")


def test_a_broker_of_a_release_that_knows_no_sets_keeps_the_cluster_at_one_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(broker: LocalBroker) -> list[str]:
        module = [older_release.__file__] if broker.name == "broker3" else ["-m", "qpid_ha_broker.server.main"]
        return [sys.executable, *module, "--config", str(broker.config)]

    monkeypatch.setattr(LocalBroker, "command", property(command))
    with RunningCluster(tmp_path, settings={"ha": {"failure-timeout": "1s"}}) as cluster:
        cluster.form()
        for words in (("set", "create", "orders"), ("replicas", "policies", "*=2")):
            told = qpid_ha(cluster, 1, *words)
            assert told.returncode == REFUSED, told
            assert "broker3 has a replica of `default` and does not report" in told.stderr
            assert "upgrade it first" in told.stderr
        assert cluster.broker(0).ask("map")["brokers"] == []
        assert qpid_ha(cluster, 0, "queue", "create", "q").returncode == 0
        assert cluster.states() == ["primary", "ready", "ready"]
