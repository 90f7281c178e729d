"""Asking a broker through its HTTP port: the requests of the control socket, as `POST /rpc` with a bearer token."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import requests

from qpid_ha_agent.broker_address import AddressError, read_config
from qpid_ha_agent.control import (
    Forbidden,
    NotAllowed,
    RequestRefused,
    TimedOut,
    Unreachable,
    decode_object,
    result_of,
)
from qpid_ha_config.addresses import Address
from qpid_ha_config.closing import Closing

HOW_TO_GIVE_A_TOKEN = "give a token with --password-file or QPID_HA_TOKEN; `qpid-ha token add` makes one"
Result = TypeVar("Result")


class HttpLogin(NamedTuple):
    """`token` empty: there is none. `ca`: a path, who signs the broker's certificate; empty: the system's authorities.

    `certificate`, `key`: our own, for brokers that ask for one; empty: there is none.
    """

    token: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""


def find_http_login(token_file: str | None, environment: Mapping[str, str] = os.environ) -> HttpLogin:
    """The token from the file, else from `QPID_HA_TOKEN`; the files of TLS from this machine's configuration.

    Raises AddressError, ConfigError, or Forbidden for a token that we may not read.
    """
    token = environment.get("QPID_HA_TOKEN", "") if token_file is None else _read_token(Path(token_file).expanduser())
    if not token.isascii() or not token.isprintable():
        raise AddressError("the token has characters that no token has: give what `qpid-ha token add` printed")
    config = read_config(environment)
    files = {} if config is None else {name: str(config.get(f"tls.{name}") or "") for name in HttpLogin._fields[1:]}
    if not os.access(files.get("key", ""), os.R_OK):  # it is the broker's; who may not read it does without
        files |= {"certificate": "", "key": ""}
    return HttpLogin(token, **files)


def _read_token(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0].strip()
    except PermissionError:
        raise Forbidden(f"no permission to read the token in {path}: run this as root") from None
    except (OSError, ValueError) as error:
        raise AddressError(f"cannot read the token in {path}: {error}") from None


class HttpControlClient(Closing):
    """As `ControlClient`, through HTTP; each call takes `timeout_s` at most for each step that it waits for.

    A token goes only where TLS is spoken, or to this machine; nobody's redirection is followed.
    """

    def __init__(self, broker: Address, login: HttpLogin, timeout_s: float = 10.0) -> None:
        """Raises AddressError for a broker to which a token must not be sent."""
        if login.token and not broker.is_tls and not broker.is_loopback:
            raise AddressError(f"{broker}: the token would pass through the network in the clear; use https")
        self.broker = broker
        self.timeout_s = timeout_s
        self._login = login
        self._session = requests.Session()
        self._session.trust_env = False  # no proxies, and no .netrc, which would take the token's place
        ca = login.ca or os.environ.get("REQUESTS_CA_BUNDLE", "")
        self._session.verify = ca or True
        if login.certificate and login.key:
            self._session.cert = (login.certificate, login.key)
        if login.token:
            self._session.headers["Authorization"] = f"Bearer {login.token}"
        self._last_identity = 0

    def close(self) -> None:
        """Drop the connection, if there is one."""
        self._session.close()

    def call(self, method: str, **params: object) -> object:
        """The result of `method`. Raises RequestRefused with the broker's reason, TimedOut or Unreachable."""
        response = self._guarded(lambda: self._post(method, params, self.timeout_s))
        return self._guarded(lambda: self._result(decode_object(response.content)))

    def stream(self, method: str, **params: object) -> Generator[object, None, None]:
        """What `method` answers, then what it goes on telling, without a limit of time, until the broker ends it.

        Raises as `call` does.
        """
        response = self._guarded(lambda: self._post(method, params, None))
        with response:
            lines = response.iter_lines(chunk_size=1)
            yield self._guarded(lambda: self._result(decode_object(next(lines, b""))))
            while (line := self._guarded(lambda: next(lines, None))) is not None:
                note = decode_object(line)
                if note is None or "params" not in note:
                    raise self._no_broker()
                yield note["params"]
        raise Unreachable(f"the broker at {self.broker} closed the connection and tells nothing more")

    def _post(self, method: str, params: Mapping[str, object], read_timeout_s: float | None) -> requests.Response:
        self._last_identity += 1
        request = {"jsonrpc": "2.0", "id": self._last_identity, "method": method, "params": params}
        response = self._session.post(
            f"{self.broker}/rpc",
            data=json.dumps(request),
            headers={"Content-Type": "application/json"},
            timeout=(self.timeout_s, read_timeout_s),
            allow_redirects=False,
            stream=read_timeout_s is None,
        )
        if response.status_code != requests.codes.ok:
            raise self._failure(response)
        return response

    def _failure(self, response: requests.Response) -> Exception:
        document: object = None
        with suppress(ValueError):
            document = response.json()
        if not isinstance(document, dict) or not isinstance(document.get("error"), str):
            return self._no_broker()
        text = f"{self.broker}: {document['error']}"
        match response.status_code:
            case 401 if not self._login.token:
                return NotAllowed(f"{self.broker}: {HOW_TO_GIVE_A_TOKEN}")
            case 401 | 403 | 429:
                return NotAllowed(text)
        return RequestRefused(0, text)

    def _guarded(self, step: Callable[[], Result]) -> Result:
        """`step`; whatever requests says is told in our terms."""
        try:
            return step()
        except requests.exceptions.SSLError as error:
            raise Unreachable(f"TLS with {self.broker} failed: {_shortly(error)}") from None
        except requests.Timeout:
            raise TimedOut(f"no answer from {self.broker} within {self.timeout_s:g} s") from None
        except (requests.RequestException, OSError) as error:
            raise Unreachable(f"cannot reach a broker at {self.broker}: {_shortly(error)}") from None

    def _result(self, reply: dict[str, Any] | None) -> object:
        return result_of(reply, self._last_identity, self._no_broker)

    def _no_broker(self) -> Unreachable:
        return Unreachable(f"what listens at {self.broker} is no qpid-ha broker, or not its port admin.listen")


def _shortly(error: Exception) -> str:
    """The cause at the bottom of urllib3's nest."""
    reason: object = error
    while isinstance(reason, Exception):
        inner = getattr(reason, "reason", None) or (reason.args[0] if reason.args else None)
        if not isinstance(inner, Exception):
            break
        reason = inner
    strerror = getattr(reason, "strerror", None)
    return str(strerror or reason)[:200]
