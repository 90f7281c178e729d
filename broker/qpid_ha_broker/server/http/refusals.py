"""What the HTTP port refuses, and whose page asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from qpid_ha_broker.server.http.http_slots import RETRY_AFTER_S

RETRY: Final = {"Retry-After": str(RETRY_AFTER_S)}


class HttpRefusal(Exception):
    """No answer but this; `problem` says what to do."""

    def __init__(self, status: int, problem: str, headers: Mapping[str, str] = {}) -> None:
        super().__init__(problem)
        self.status = status
        self.problem = problem
        self.headers = headers


def is_own_page(origin: str, host: str) -> bool:
    """Whether a page of that origin is of this port, which the request has called `host`."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:  # half an IPv6 address, say: no browser has such a site
        return False
