"""Whether what came of a case may have come of it. Pure."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from fuzz.http_cases import OF_ROLES, PUBLIC, Case
from qpid_ha_broker.server.control.audited_requests import audited_request
from qpid_ha_broker.server.control.control import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_ALLOWED,
    PARSE_ERROR,
    REFUSED,
)
from qpid_ha_config.tokens import TokenRole

STATUSES: Final = frozenset({200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 426, 429, 503, 504})
"""Those of docs/monitoring.md."""
CODES: Final = frozenset({PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, REFUSED, NOT_ALLOWED})
MARKER: Final = "only-for-those-with-a-role"
"""The name of a queue."""
_HEAD: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_ENDLESS: Final = (b"text/event-stream", b"application/x-ndjson")


def is_endless(answer: bytes) -> bool:
    """An answer that goes on has begun, with the first of what it tells."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return any(kind in head for kind in _ENDLESS) and b"\n" in body


def problem_with(case: Case, answer: bytes) -> str:
    """Empty, or what is wrong with it; without a whole request all that is known is what must never be told."""
    statuses = [int(found) for found in _HEAD.findall(answer)]
    unknown = [status for status in statuses if status not in STATUSES]
    if unknown or b"Traceback" in answer:
        return f"an answer that is not documented: {unknown or 'a traceback'}"
    if (case.role is None or not case.role.includes(TokenRole.METRICS)) and MARKER.encode() in answer:
        return "it was told what takes a role"
    if not case.is_whole:
        return ""
    if len(statuses) != 1:
        return f"{len(statuses)} answers to one request"
    return _problem_of_role(case, statuses[0], answer) or (
        _problem_of_rpc(case, statuses[0], answer) if case.method else ""
    )


def _problem_of_role(case: Case, status: int, answer: bytes) -> str:
    needed = OF_ROLES.get(case.path)
    if needed is not None and status == 200 and (case.role is None or not case.role.includes(needed)):
        return f"{case.path} was answered to {case.role}"
    if case.path in PUBLIC and status in (401, 403):
        return f"{case.path} takes no role, and {status} was answered"
    if status >= 400 and b"\r\n\r\n" in answer and not answer.startswith(b"HTTP/1.0"):
        body = answer.partition(b"\r\n\r\n")[2]
        is_said = not body or b'"error"' in body or b'"reason"' in body
        return "" if is_said else f"{status} without a reason"
    return ""


def _problem_of_rpc(case: Case, status: int, answer: bytes) -> str:
    if status != 200:
        return ""
    reply = _reply(answer)
    if reply is None:
        return "no reply of JSON-RPC"
    code = reply.get("error", {}).get("code") if "error" in reply else None
    if code is None and "result" not in reply:
        return "neither a result nor an error"
    if code is not None:
        return (
            "" if code in CODES else f"an error that is not documented: {code}{' (a bug)' * (code == INTERNAL_ERROR)}"
        )
    if case.must_fail:
        return f"{case.method} was carried out with parameters that are wrong"
    if case.role is TokenRole.VIEWER and audited_request(case.method, case.params) is not None:
        return f"{case.method} was done for a viewer"
    return ""


def _reply(answer: bytes) -> dict[str, Any] | None:
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"chunked" in head:  # a stream: its first line is the reply
        body = body.partition(b"\r\n")[2].partition(b"\n")[0]
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
