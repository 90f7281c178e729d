"""A set of which everybody in sync is lost for good: an operator goes on with the copy that is left, and hears it."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

from click.testing import Result
from proton import Message

import admin_tool
from blocking_client import BlockingClient, bodies
from running_cluster import RunningCluster
from sets_cluster import create_queue, create_set, sets_of, wait_whole

CONTROLLER, LOST, LEFT = 0, 1, 2


def qpid_ha(*words: str, socket: Path | None = None) -> Result:
    """Asking the broker with that control socket."""
    environment = {} if socket is None else {"QPID_HA_SOCKET": str(socket)}
    return admin_tool.qpid_ha(*words, QPID_HA_CONFIG="/dev/null", **environment)


def publish(url: str, *texts: str) -> None:
    with BlockingClient(url) as client:
        client.send("q", *(Message(text, durable=True) for text in texts))


def browsed(url: str) -> list[object]:
    with BlockingClient(url) as client:
        return bodies(client.browse("q"))


def test_the_copy_that_is_left_leads_by_force_alone_and_what_it_lacks_is_kept_apart_where_it_is(tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    with RunningCluster(tmp_path, settings={"ha": {"failure-timeout": "1s"}}, stores=stores) as cluster:
        cluster.form()
        names = [broker.name for broker in cluster.brokers]
        controller = cluster.broker(CONTROLLER)
        create_set(cluster, "orders", replicas=names[1:], preferred=names[LOST], min_replicas=2)
        wait_whole(cluster, CONTROLLER, "orders")
        create_queue(cluster, CONTROLLER, "q", "orders")
        publish(cluster.urls[LOST], "one", "two")
        cluster.kill(LEFT)
        cluster.wait_until(lambda: sets_of(controller)["orders"]["in_sync"] == [names[LOST]], "it is left out")
        publish(cluster.urls[LOST], "three")
        cluster.kill(LOST)
        cluster.restart(LEFT)
        cluster.wait_until(
            lambda: (
                sets_of(controller)["orders"]["problem"].startswith(f"in sync were {names[LOST]}: start")
                and sets_of(controller)["orders"]["replicas"][names[LEFT]] == "connecting"
            ),
            "nobody may lead",
        )

        # Without force it says what would be lost, and who has that.
        refused = qpid_ha("set", "promote", "orders", names[LEFT], socket=controller.control_socket)
        assert refused.exit_code == 1
        assert f"in sync were {names[LOST]}" in refused.stderr
        assert f"`qpid-ha set promote orders {names[LEFT]} --force`" in refused.stderr
        assert not sets_of(controller)["orders"]["primary"]

        done = qpid_ha("set", "promote", "orders", names[LEFT], "--force", socket=controller.control_socket)
        assert done.exit_code == 0
        assert done.stderr == f"What brokers other than {names[LEFT]} alone have confirmed in set orders is given up.\n"
        assert f"what only {names[LOST]} confirmed after LSN" in done.stdout
        cluster.wait_until(lambda: sets_of(controller)["orders"]["primary"] == names[LEFT], "it leads")
        assert browsed(cluster.urls[LEFT]) == ["one", "two"]
        publish(cluster.urls[LEFT], "four")

        # Whoever looks later finds it in the logs of both, and in the history.
        assert "is to lead by force of an operator" in controller.log()
        assert (
            "set orders: promoted by force: messages that only other brokers hold are given up"
            in cluster.broker(LEFT).log()
        )
        told = qpid_ha("history", "orders", socket=controller.control_socket)
        assert "is given up" in told.stdout

        # The old history comes back: it joins the new one, and what was confirmed in it alone is kept apart.
        cluster.restart(LOST)
        orders = wait_whole(cluster, CONTROLLER, "orders")["orders"]
        assert (orders["primary"], sorted(orders["in_sync"])) == (names[LEFT], names[1:])
        assert browsed(cluster.urls[LEFT]) == ["one", "two", "four"]
        data = next(stores.glob(f"*{names[LOST]}"))
        kept = json.loads(qpid_ha("store", "discarded", "list", "--data-dir", str(data), "--format", "json").stdout)
        assert [(each["set"], each["queue"], each["messages"]) for each in kept] == [("orders", "q", 1)]
        assert '"three"' in qpid_ha("store", "discarded", "export", "--data-dir", str(data)).stdout


def test_after_a_total_crash_in_which_a_machine_is_lost_recover_marks_the_store_of_a_set_and_it_comes_back_by_itself(
    tmp_path: Path,
) -> None:
    stores = tmp_path / "stores"
    with RunningCluster(tmp_path, settings={"ha": {"failure-timeout": "1s"}}, stores=stores) as cluster:
        cluster.form()
        names = [broker.name for broker in cluster.brokers]
        create_set(cluster, "orders", replicas=names[1:], preferred=names[LOST], min_replicas=2)
        wait_whole(cluster, CONTROLLER, "orders")
        create_queue(cluster, CONTROLLER, "q", "orders")
        publish(cluster.urls[LOST], "one", "two")
        cluster.crash()
        first, left = (next(stores.glob(f"*{names[index]}")) for index in (CONTROLLER, LEFT))
        shutil.rmtree(next(stores.glob(f"*{names[LOST]}")))

        asked = qpid_ha("store", "best", "--format", "json", str(first), str(left))
        assert asked.exit_code == 1
        verdicts = json.loads(asked.stdout)["sets"]
        assert {name: each["missing"] for name, each in verdicts.items()} == {
            "default": [names[LOST]], "orders": [names[LOST]]
        }  # fmt: skip
        for verdict in verdicts.values():  # as an operator would copy what it prints for going on without that one
            _qpid_ha, *words = shlex.split(verdict["options"][1]["commands"][0])
            done = qpid_ha(*words)
            assert (done.exit_code, done.stderr) == (0, "")
        winner = names.index(verdicts["default"]["options"][1]["commands"][0].split("--winner ")[1].split()[0])
        for index in (CONTROLLER, LEFT):
            cluster.restart(index)
        cluster.promote(winner)

        controller = cluster.broker(winner)
        cluster.wait_until(lambda: sets_of(controller).get("orders", {}).get("primary") == names[LEFT], "it leads")
        assert browsed(cluster.urls[LEFT]) == ["one", "two"]
