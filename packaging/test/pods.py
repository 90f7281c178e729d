"""Commands that make containers of podman from packaging/kubernetes/brokers.yaml, as far as podman has the same.

usage: pods.py FILE DIRECTORY ORDINAL   (prints `podman run` for each container of that pod, the initial ones first)

What is the same: image, user, groups, capabilities, a root that cannot be written, commands, mounts and their modes as
Kubernetes makes them, the host name and the names in /etc/hosts. DIRECTORY has secrets/NAME/KEY, a file hosts-ORDINAL,
and takes volumes. The pod's network is /run/netns/pod-ORDINAL.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

IMAGE = "localhost/qpid-ha"


def main(file: str, directory: str, ordinal: str) -> None:
    """Make the volumes of the pod and print the commands."""
    objects = [document for document in yaml.safe_load_all(Path(file).read_text(encoding="utf-8")) if document]
    (configured,) = [one for one in objects if one["kind"] == "StatefulSet"]
    (settings,) = [one for one in objects if one["kind"] == "ConfigMap"]
    pod = f"{configured['metadata']['name']}-{ordinal}"
    spec = configured["spec"]["template"]["spec"]
    places = dict(volumes(configured["spec"], settings, Path(directory), pod))
    for container in [*spec["initContainers"], *spec["containers"]]:
        network = ["--network", f"ns:/run/netns/pod-{ordinal}", "--hostname", pod]
        hosts = ["--no-hosts", "--volume", f"{directory}/hosts-{ordinal}:/etc/hosts:ro"]
        print(shlex.join(["podman", "run", *network, *hosts, *of_container(spec, container, places, pod)]))


def volumes(spec: dict[str, Any], settings: dict[str, Any], directory: Path, pod: str) -> Iterator[tuple[str, Path]]:
    """(name, directory) of each volume, with the modes that Kubernetes gives them."""
    group = spec["template"]["spec"]["securityContext"]["fsGroup"]
    for claim in spec["volumeClaimTemplates"]:
        yield claim["metadata"]["name"], made(directory / pod / claim["metadata"]["name"], group, "2775")
    for volume in spec["template"]["spec"]["volumes"]:
        place = made(directory / pod / volume["name"], group, "0777")
        if "emptyDir" in volume:
            if volume["emptyDir"]["medium"] != "Memory":
                sys.exit(f"volume {volume['name']}: only those in memory are known here")
            tmpfs = f"mode=3777,gid={group},size={volume['emptyDir']['sizeLimit'].removesuffix('i')}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", tmpfs, "tmpfs", str(place)], check=True)
        elif "configMap" in volume:
            for name, text in settings["data"].items():
                (place / name).write_text(text, encoding="utf-8")
                (place / name).chmod(volume["configMap"]["defaultMode"])
        else:
            made(place, group, "3777")
            for file in (directory / "secrets" / volume["secret"]["secretName"]).iterdir():
                copy = place / file.name
                copy.write_bytes(file.read_bytes())
                subprocess.run(["chown", f"0:{group}", str(copy)], check=True)
                copy.chmod(volume["secret"]["defaultMode"])
        yield volume["name"], place


def made(place: Path, group: int, mode: str) -> Path:
    """That directory, of root and the group."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["chown", f"0:{group}", str(place)], check=True)
    subprocess.run(["chmod", mode, str(place)], check=True)
    return place


def of_container(spec: dict[str, Any], container: dict[str, Any], places: dict[str, Path], pod: str) -> Iterator[str]:
    """Arguments of `podman run`."""
    of_pod, own = spec["securityContext"], container["securityContext"]
    yield from ("--user", f"{of_pod['runAsUser']}:{of_pod['runAsGroup']}", "--group-add", str(of_pod["fsGroup"]))
    yield from (f"--cap-drop={name}" for name in own["capabilities"]["drop"])
    if own["readOnlyRootFilesystem"]:
        yield from ("--read-only", "--read-only-tmpfs=false")
    if not own["allowPrivilegeEscalation"]:
        yield "--security-opt=no-new-privileges"
    for mount in container["volumeMounts"]:
        place = places[mount["name"]] / mount.get("subPath", "")
        yield from ("--volume", f"{place}:{mount['mountPath']}:{'ro' if mount.get('readOnly') else 'rw'}")
    yield "--no-healthcheck"
    if "command" in container:
        program, *arguments = container["command"]
        yield from ("--rm", "--entrypoint", program, IMAGE, *arguments)
    else:
        yield from ("--detach", "--name", pod, IMAGE)


if __name__ == "__main__":
    main(*sys.argv[1:])
