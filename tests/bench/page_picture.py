"""The picture of the web page in README and docs/monitoring.md, taken of brokers that run:

    PYTHONPATH=demo:tests:tests/support .venv/bin/python -m bench.page_picture docs/images/web-page.webp

Three brokers, of which one was killed, as the page of a backup shows it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import click
from proton import Message

from blocking_client import BlockingClient
from chromium import Chromium
from http_port import write_tokens
from page_site import VIEWER, Site
from running_cluster import RunningCluster

WIDTH: Final = 1280
TALLEST: Final = 1200
FOUND: Final = "document.querySelector('#looked')?.textContent.includes('; found ')"
"""What is wrong is told."""
BOTTOM: Final = "Math.ceil(document.querySelector('main .actions').getBoundingClientRect().bottom) + 16"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
def main(path: Path) -> None:
    """Write the picture to PATH, a .webp or a .png."""
    with tempfile.TemporaryDirectory(prefix="qpid-ha-picture-") as name:
        directory = Path(name)
        tokens = write_tokens(directory / "tokens")
        admin = {"admin": {"listen": "http://127.0.0.1:0", "tokens": str(directory / "tokens")}}
        with RunningCluster(directory, settings=admin) as cluster, Chromium() as page:
            cluster.form()
            _, backup, lost = cluster.brokers
            with BlockingClient(cluster.urls[0]) as client:
                client.send("letters", *(Message(f"{number}") for number in range(12)))
            page.resize(WIDTH, TALLEST)
            Site(cluster, tokens, page).log_in(backup, VIEWER)
            lost.kill()
            page.wait(f"{FOUND} && document.body.innerText.includes('unreachable')")
            page.resize(WIDTH, page.evaluate(BOTTOM))
            page.screenshot(path)
    click.echo(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
