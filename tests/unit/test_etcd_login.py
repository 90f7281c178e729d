"""A login at etcd costs it a tenth of a second or more: a process has one for each user, however many ask."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qpid_ha_broker.coordination import etcd_gateway
from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.deadline import Deadline
from qpid_ha_broker.coordination.etcd_gateway import EtcdGateway, EtcdRefused
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.settings import CoordinatorSettings

URL = "etcd://e1:2379,e2:2379/clusters/c1"


class Etcd:
    """What it is asked, and which tokens it takes."""

    def __init__(self) -> None:
        self.logins: list[str] = []
        self.valid = ""
        self.during_login: Callable[[], None] = lambda: None

    def post(self, _gateway: EtcdGateway, _server: Any, path: str, body: Any, token: str, _timeout_s: float) -> Any:
        if path == "/v3/auth/authenticate":
            self.logins.append(body["password"])
            self.during_login()
            self.valid = f"token-{len(self.logins)}"
            return {"token": self.valid}
        if token != self.valid:
            raise EtcdRefused("etcd refuses: invalid auth token", 16)
        return {"header": {"revision": "1"}}


@pytest.fixture
def etcd(monkeypatch: pytest.MonkeyPatch) -> Etcd:
    server = Etcd()
    monkeypatch.setattr(EtcdGateway, "_post", lambda *asked: server.post(*asked))
    monkeypatch.setattr(etcd_gateway, "_LOGINS", {})
    return server


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("s3cret\n", encoding="utf-8")
    return path


def gateway(password_file: Path, user: str = "me", url: str = URL) -> EtcdGateway:
    parsed = CoordinatorUrl.parse(url)
    return EtcdGateway(CoordinatorSettings(url=parsed, username=user, password_file=password_file))


def read(asked: EtcdGateway) -> None:
    asked.read("k", Deadline.after(5))


def test_all_gateways_of_a_process_share_a_login(etcd: Etcd, password_file: Path) -> None:
    for url in (URL, URL, "etcd://e2:2379,e1:2379/clusters/c2"):
        asked = gateway(password_file, url=url)
        read(asked)
        asked.close()
    assert etcd.logins == ["s3cret"]


def test_another_user_password_or_ensemble_has_a_login_of_its_own(etcd: Etcd, password_file: Path) -> None:
    for user, url, password in (("me", URL, "a"), ("you", URL, "a"), ("me", "etcd://e3/c1", "a"), ("me", URL, "b")):
        password_file.write_text(f"{password}\n", encoding="utf-8")
        read(gateway(password_file, user, url))
    assert etcd.logins == ["a", "a", "a", "b"]


def test_a_token_that_is_not_taken_any_more_is_renewed_once_for_all(etcd: Etcd, password_file: Path) -> None:
    one, other = gateway(password_file), gateway(password_file)
    read(one)
    etcd.valid = "none"
    read(one)
    read(other)
    assert len(etcd.logins) == 2


def test_threads_that_need_a_token_at_the_same_time_log_in_once(etcd: Etcd, password_file: Path) -> None:
    asked, other = gateway(password_file), gateway(password_file)
    under_way, all_ask = threading.Event(), threading.Event()

    def begun() -> None:
        under_way.set()
        assert all_ask.wait(10)

    etcd.during_login = begun
    threads = [threading.Thread(target=read, args=(each,)) for each in (asked, asked, other, other)]
    threads[0].start()
    assert under_way.wait(10)
    for thread in threads[1:]:
        thread.start()
    all_ask.set()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert len(etcd.logins) == 1


def test_a_login_that_takes_too_long_costs_others_no_more_than_their_time(etcd: Etcd, password_file: Path) -> None:
    under_way, over = threading.Event(), threading.Event()

    def hangs() -> None:
        under_way.set()
        over.wait(10)

    etcd.during_login = hangs
    thread = threading.Thread(target=read, args=(gateway(password_file),))
    thread.start()
    assert under_way.wait(10)
    try:
        with pytest.raises(CoordinatorError, match="another login takes longer"):
            gateway(password_file).read("k", Deadline.after(0.05))
    finally:
        over.set()
        thread.join(10)
