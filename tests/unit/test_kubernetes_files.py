"""What packaging/kubernetes has: objects by Kubernetes' own schemas, settings by the broker's reader.

And that they fit each other, the image, the units and the page.
"""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from doc_blocks import DOCS
from qpid_ha_agent.cli.admin import admin
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.metrics import health
from qpid_ha_config.configuration import WrittenSettings
from qpid_ha_config.settings import BrokerSettings
from typed_commands import parse

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.name: path for path in sorted((ROOT / "packaging" / "kubernetes").iterdir())}
RELEASES = ("1.27", "1.30", "1.34")
"""Of Kubernetes: by their schemas the files are read."""
ANSWERED = {"/live": health.is_live, "/ready": health.is_ready}


def objects(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Those of a file, by kind and name."""
    found = list(yaml.safe_load_all(FILES[name].read_text(encoding="utf-8")))
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


BROKERS = objects("brokers.yaml")
BROKER_SET = BROKERS["StatefulSet", "qpid-ha"]
POD: Mapping[str, Any] = BROKER_SET["spec"]["template"]["spec"]
(BROKER,) = POD["containers"]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BrokerSettings:
    """Of the first pod, as a start reads them; files of the machine are not looked for."""
    monkeypatch.setattr(socket, "gethostname", lambda: "qpid-ha-0")
    file = tmp_path / "qpid-ha.yaml"
    file.write_text(BROKERS["ConfigMap", "qpid-ha"]["data"]["qpid-ha.yaml"], encoding="utf-8")
    written = WrittenSettings.read(file)
    written.check_each()
    with written.blamed():
        return BrokerSettings.from_values(written.of_worker().values)


def addresses_of(stateful: Mapping[str, Any], port: int) -> list[tuple[str, int]]:
    """By which its pods find each other: https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/."""
    name, spaces, spec = stateful["metadata"]["name"], stateful["metadata"]["namespace"], stateful["spec"]
    return [(f"{name}-{number}.{spec['serviceName']}.{spaces}.svc", port) for number in range(spec["replicas"])]


# --- objects


@pytest.fixture
def schemas() -> Any:
    """Those of Kubernetes; the tests that follow go without."""
    missing = "NOT CHECKED BY A SCHEMA: kubernetes-validate is missing; ./dev setup installs it"
    return pytest.importorskip("kubernetes_validate", reason=missing)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("release", RELEASES)
def test_each_object_is_one_by_the_schema_of_kubernetes(name: str, release: str, schemas: Any) -> None:
    for found in objects(name).values():
        schemas.validate(found, release, strict=True)


def test_a_key_that_kubernetes_does_not_know_is_found(schemas: Any) -> None:
    wrong = {**BROKER_SET, "spec": {**BROKER_SET["spec"], "replica": 3}}
    with pytest.raises(schemas.ValidationError):
        schemas.validate(wrong, RELEASES[0], strict=True)


@pytest.mark.parametrize("name", FILES)
def test_services_budgets_and_rules_are_about_pods_that_there_are(name: str) -> None:
    found = objects(name)
    (stateful,) = [each for (kind, _), each in found.items() if kind == "StatefulSet"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"] for each in stateful["spec"]["template"]["spec"]["containers"] for port in each["ports"]}
    for (kind, _), each in found.items():
        spec = each.get("spec", {})
        assert each["metadata"]["namespace"] == "messaging"
        if kind == "Service":
            assert spec["selector"].items() <= labels.items()
            assert {port["targetPort"] for port in spec["ports"]} <= ports
        elif kind in ("PodDisruptionBudget", "StatefulSet"):
            assert spec["selector"]["matchLabels"].items() <= labels.items()
    headless = found["Service", stateful["spec"]["serviceName"]]["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    assert found["PodDisruptionBudget", stateful["metadata"]["name"]]["spec"]["maxUnavailable"] == 1
    assert stateful["spec"]["podManagementPolicy"] == "Parallel", "none is ready before others are there"


@pytest.mark.parametrize("name", FILES)
def test_nobody_is_root_or_writes_into_the_image(name: str) -> None:
    (stateful,) = [each for (kind, _), each in objects(name).items() if kind == "StatefulSet"]
    pod = stateful["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    volumes = {each["name"] for each in pod["volumes"]} | {
        each["metadata"]["name"] for each in stateful["spec"]["volumeClaimTemplates"]
    }
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        own = container["securityContext"]
        assert (own["readOnlyRootFilesystem"], own["allowPrivilegeEscalation"]) == (True, False)
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert {each["name"] for each in container["volumeMounts"]} <= volumes


# --- settings


def test_each_pod_is_a_broker_of_the_cluster_that_its_settings_name(settings: BrokerSettings) -> None:
    (listener,) = settings.listen
    assert settings.name == "qpid-ha-0", "that of the pod"
    assert [(url.host, url.port) for url in settings.ha.brokers_url] == addresses_of(BROKER_SET, listener.port)
    assert all(url.is_tls for url in (*settings.ha.brokers_url, listener))
    ports = {each["name"]: each["containerPort"] for each in BROKER["ports"]}
    assert ports == {"amqps": listener.port, "admin": settings.admin.listen[0].port}


def test_the_coordinator_is_the_etcd_beside_it(settings: BrokerSettings) -> None:
    etcd = objects("etcd.yaml")["StatefulSet", "etcd"]
    assert list(settings.coordinator.url.servers) == addresses_of(etcd, 2379)
    (container,) = etcd["spec"]["template"]["spec"]["containers"]
    flags = dict(argument.removeprefix("--").split("=", 1) for argument in container["args"])
    members = ",".join(f"{host.partition('.')[0]}=https://{host}:2380" for host, _ in addresses_of(etcd, 2379))
    assert flags["initial-cluster"] == members
    assert settings.coordinator.tls


def test_each_file_that_the_settings_name_is_in_a_volume(settings: BrokerSettings) -> None:
    mounts = {Path(each["mountPath"]): each for each in BROKER["volumeMounts"]}
    files = [settings.tls.certificate, settings.tls.key, settings.tls.ca, settings.sasl.users_db, settings.data_dir,
             settings.ha.password_file, settings.coordinator.password_file, settings.coordinator.ca]  # fmt: skip
    for file in files:
        assert file is not None
        assert set(file.parents) & set(mounts), file
    secret = {each["name"]: each["secret"] for each in POD["volumes"] if "secret" in each}
    assert {each["defaultMode"] for each in secret.values()} == {0o440}, "qpidd refuses what everybody may read"
    kept = {each["name"]: each["emptyDir"] for each in POD["volumes"] if "emptyDir" in each}
    assert {each["medium"] for each in kept.values()} == {"Memory"}, "else everybody may replace what is in it"


def test_the_user_of_the_brokers_is_made_where_they_look_for_it(settings: BrokerSettings, tmp_path: Path) -> None:
    (users,) = POD["initContainers"]
    program, *words = users["command"]
    assert program == "qpid-ha"
    password = tmp_path / "password"
    password.touch()
    parse(admin, [str(password) if word == str(settings.ha.password_file) else word for word in words])
    given = dict(itertools.pairwise(words))
    assert given["add"] == settings.ha.username
    assert given["--sasldb"] == str(settings.sasl.users_db)
    assert given["--password-from"] == str(settings.ha.password_file)
    assert users["image"] == BROKER["image"]


# --- life and death


def test_a_broker_that_loads_or_catches_up_lives_and_is_not_ready() -> None:
    for probe, path in (("livenessProbe", "/live"), ("readinessProbe", "/ready")):
        assert BROKER[probe]["httpGet"] == {"path": path, "port": "admin", "scheme": "HTTPS"}
    for state in (State.LOADING, State.CONNECTING, State.CATCHUP):
        broker = health.BrokerHealth("qpid-ha-0", state, relays=True)
        assert ANSWERED["/live"](broker).yes
        assert not ANSWERED["/ready"](broker).yes


def test_what_is_level_is_ready_so_that_an_update_can_go_on(settings: BrokerSettings) -> None:
    relays = settings.ha.clients == "proxy"
    assert ANSWERED["/ready"](health.BrokerHealth("qpid-ha-0", State.READY, relays=relays)).yes


def test_the_kubelet_has_more_patience_than_an_agent() -> None:
    from qpid_ha_agent.decision import Limits

    probe, limits = BROKER["livenessProbe"], Limits()
    assert probe["periodSeconds"] * probe["failureThreshold"] > max(limits.start_s, limits.give_up_after_s)


def test_an_end_may_take_as_long_as_under_systemd() -> None:
    unit = (ROOT / "systemd" / "qpid-ha-agent.service").read_text(encoding="utf-8")
    (allowed_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    compose = yaml.safe_load((ROOT / "packaging" / "container" / "compose.yaml").read_text(encoding="utf-8"))
    assert POD["terminationGracePeriodSeconds"] == int(allowed_s)
    assert {each["stop_grace_period"] for each in compose["services"].values()} == {f"{allowed_s}s"}


def test_the_user_is_that_of_the_image() -> None:
    image = (ROOT / "packaging" / "container" / "Containerfile").read_text(encoding="utf-8")
    (user, group), *more = re.findall(r"^USER (\d+):(\d+)$", image, re.MULTILINE)
    assert more == []
    context = POD["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (int(user), int(group), int(group))
    assert f"--uid {user} --gid {group}" in image


def test_the_page_names_each_secret_and_says_what_was_not_tried() -> None:
    text = (DOCS / "kubernetes.md").read_text(encoding="utf-8")
    for name in FILES:
        pod = next(each for (kind, _), each in objects(name).items() if kind == "StatefulSet")["spec"]["template"][
            "spec"
        ]
        for volume in pod["volumes"]:
            if "secret" in volume:
                assert f"secret generic {volume['secret']['secretName']} " in text
    assert "not been run on a cluster of Kubernetes" in " ".join(text.split())
