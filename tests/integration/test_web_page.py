"""Stories about the web page, in a real Chromium: log in, see a failover, purge a queue, be refused. On one cluster."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest
from proton import Message, ProtonException

from accessibility import accessibility_problems
from blocking_client import BlockingClient
from chromium import Chromium
from http_port import write_tokens
from page_site import ADMIN, NO_SCROLLING, OPERATOR, SHOTS, VIEWER, Site
from qpid_ha_broker.access.scram import UserLogin
from qpid_ha_config.tokens import token_digest
from running_cluster import RunningCluster

pytestmark = pytest.mark.direct_only("the page is about the broker that serves it")

HTML_NAME = "<img src=x onerror=alert(1)>"
HTML_EXCHANGE = "<img src=x onerror=alert(3)>"
EVERY_COLOUR = """<div id="colours">
    <p class="banner" role="alert">a banner</p> <p class="problem" role="alert">a problem</p>
    <ul class="wrongs"><li class="wrong"><p>bad</p><p class="quiet">help</p></li>
    <li class="wrong warning"><p>warning</p><p class="quiet">help</p></li>
    <li class="wrong notice"><p>notice</p><p class="quiet">help</p></li></ul>
    <table><caption>Colours</caption>
    <tr><td class="bad">bad</td><td class="warn">warn</td><td class="quiet">quiet</td></tr></table>
    <button class="danger">Purge</button></div>"""
"""What is shown when something is wrong."""
BARRIERS = """<div id="barriers"><h2>Two</h2><h4>Four</h4><button></button><input>
    <button id="unseen">Unseen</button><button id="first" tabindex="3">First</button>
    <p id="view">twice</p><p class="problem">quietly</p><a href="#" aria-describedby="nowhere">link</a>
    <font color="#eeeeee">pale</font></div>"""
"""The policy of the page lets no styles of elements in, so a colour is an attribute."""
REPLACING = """(() => {
    const given = GIVEN, real = window.fetch;
    window.fetch = async (path, options) => {
        const answer = await real(path, options);
        const method = options?.body ? JSON.parse(options.body).method : "";
        if (!["sets", "status"].includes(method) && !String(path).startsWith("/queues")) return answer;
        const told = await answer.json();
        if (method === "sets") told.result = given.sets;
        else if (method === "status") {
            for (const row of [told.result].flat()) Object.assign(row, { sets: 3, groups: given.groups });
        }
        else for (const row of told.rows) Object.assign(row, { owner: "node1", waiting: ["node2", "node3"] });
        return new Response(JSON.stringify(told));
    };
})()"""
"""Has the page see groups in what its broker answers."""
ANSWERING = """(() => {
    const given = GIVEN, real = window.fetch;
    window.fetch = async (path, options) => {
        const method = options?.body ? JSON.parse(options.body).method : "";
        const answer = { jsonrpc: "2.0", id: 1, result: given };
        return method === "connections" ? new Response(JSON.stringify(answer)) : real(path, options);
    };
})()"""
"""Has the page get these connections."""
CHARTS = "[...document.querySelectorAll('figure.chart')]"
ROWS = "[...document.querySelectorAll('tbody tr')].map((row) => row.innerText)"
NOTHING_ELSE = (
    "document.querySelector('#looked')?.textContent.startsWith('Looked at') &&"
    " [...document.querySelectorAll('ul.wrongs li')].every((one) => one.innerText.includes('(fails-over-often)'))"
)
"""Nothing is found but that the tests have one broker after the other lead."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    tokens = write_tokens(directory / "tokens")
    admin = {"admin": {"listen": "http://127.0.0.1:0", "tokens": str(directory / "tokens")}}
    with RunningCluster(directory, agents=True, settings=admin) as cluster, Chromium() as page:
        cluster.wait_until(lambda: cluster.primary() is not None, "a primary")
        cluster.wait_whole()
        primary = cluster.the_primary()
        for name in (HTML_NAME, *(f"orders.{number}" for number in range(300))):
            primary.ask("queues", action="create", name=name)
        client = BlockingClient(cluster.urls[cluster.brokers.index(primary)])
        for name, number in ((HTML_NAME, 3), ("orders.7", 5)):
            sender = client.sender(name)
            for _ in range(number):
                sender.send(Message(body="<script>alert(2)</script>"))
        client.connection.close()
        yield Site(cluster, tokens, page)
        assert page.problems == []


@pytest.fixture(autouse=True)
def wide(site: Site) -> None:
    site.page.resize(1280, 860)


def test_a_wrong_token_is_refused_and_a_viewer_sees_the_cluster_and_changes_nothing(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    page.open(site.url(primary))
    page.wait("document.activeElement.id === 'token'")
    page.type("not-a-token-of-anybody")
    page.press("Enter")
    page.wait_text("nobody has this token")
    page.screenshot(SHOTS / "login.png")
    assert accessibility_problems(page) == []
    site.log_in(primary, VIEWER)
    page.wait(NOTHING_ELSE)
    looked = "/^Looked at [0-9]+ things .*3 brokers.*, at [0-9:]+; (nothing found|found 1)\\.$/"
    page.wait(f"{looked}.test(document.querySelector('#looked').textContent)")
    page.evaluate("document.querySelector('.looked + details summary').focus()")
    page.press("Enter")
    page.wait_text("agents, Pacemaker")
    assert page.evaluate("document.querySelectorAll('.follows').length") == 2
    assert page.evaluate("[...document.querySelectorAll('.action button')].every((button) => button.disabled)")
    assert "what changes something takes operator" in page.text()
    asked = """import('/page/broker.js').then((broker) => broker.call('queues', {action: 'purge', name: 'orders.7'}))
        .then(() => 'done', (error) => error.message)"""
    assert "viewer has the role viewer, and queues purge takes operator" in page.evaluate(asked)
    assert page.evaluate("document.querySelector('nav a[aria-current]').textContent") == "Cluster"


def test_a_user_logs_in_by_his_password_and_out_again(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    password = "not committed anywhere else"
    verifiers = UserLogin.of("olga", password, bytes(16), 4096).text
    primary.ask("users", action="set", name="olga", verifiers=verifiers)
    page.open(site.url(primary))
    page.evaluate("sessionStorage.clear()")
    page.open(site.url(primary))
    page.wait("document.activeElement.id === 'token'")
    page.click("#user")
    page.type("olga")
    page.press("Tab")
    page.type("wrong")
    page.press("Enter")
    page.wait_text("no user has this password")
    page.wait("document.activeElement.id === 'password' && document.activeElement.value === ''")
    assert accessibility_problems(page) == []
    page.type(password)
    page.press("Enter")
    page.wait("document.querySelector('#who').textContent === 'olga'")
    page.wait(NOTHING_ELSE)
    page.wait("[...document.querySelectorAll('#pause')].every((button) => !button.disabled)")
    page.click("#logout")
    page.wait("document.activeElement.id === 'token'")
    assert page.evaluate("sessionStorage.length") == 0
    assert password not in "".join(broker.log() for broker in site.cluster.brokers)
    primary.ask("users", action="remove", name="olga")


def test_an_administrator_adds_a_user_and_a_token_that_are_let_in_and_removes_them(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    password = "not committed anywhere else ä"
    site.log_in(primary, VIEWER)
    site.go("users")
    page.wait_text("users list takes operator")
    site.log_in(primary, OPERATOR)
    site.go("users")
    page.wait_text("0 users and 0 tokens of the cluster")
    assert page.evaluate("document.querySelector('#add-user').disabled")
    site.log_in(primary, ADMIN)
    site.go("users")
    page.wait("!document.querySelector('#add-user')?.disabled")
    page.click("#add-user")
    for text in ("olga", password):
        page.type(text)
        page.press("Tab")
    page.type("another")
    page.press("Enter")
    page.wait_text("the two passwords are not the same")
    page.evaluate(
        "document.querySelector('dialog [name=again]').value = document.querySelector('dialog [name=password]').value"
    )
    assert accessibility_problems(page) == []
    page.click("dialog button[type=submit]")
    site.close_done("The user olga was added")
    (kept,) = primary.ask("users", action="export")["answer"]
    assert all(verifier.knows(password) for verifier in UserLogin.read("olga", kept["verifiers"]).verifiers)
    page.click("#add-token")
    page.type("scraper")
    page.press("Enter")
    page.wait("document.querySelector('dialog .command code') !== null")
    token = page.evaluate("document.querySelector('dialog .command code').textContent")
    (entry,) = primary.ask("tokens", action="export")["answer"]
    assert entry == {"name": "scraper", "role": "viewer", "digest": token_digest(token)}
    assert token not in page.evaluate("document.querySelector('#announce').textContent")
    page.resize(400, 860)
    assert page.evaluate(NO_SCROLLING)
    assert accessibility_problems(page) == []
    site.close_done("The token scraper was added")
    page.wait_text("1 user and 1 token of the cluster")
    assert page.evaluate("document.querySelector('dialog').childElementCount") == 0
    page.screenshot(SHOTS / "users.png")
    assert page.evaluate(NO_SCROLLING)
    for name, left in (("user olga", "0 users and 1 token"), ("token scraper", "0 users and 0 tokens")):
        page.click(f"button[aria-label='Remove the {name}']")
        page.press("Tab")
        page.press("Enter")
        site.close_done(f"The {name} was removed")
        page.wait_text(f"{left} of the cluster")
    assert password not in "".join(broker.log() for broker in site.cluster.brokers)


def test_an_administrator_sees_which_rule_decides_and_changes_the_rules_of_the_cluster(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    kept = "allow all all,replicate,monitor,administer"
    site.log_in(primary, VIEWER)
    site.go("rules")
    page.wait_text("list-acl takes operator")
    site.log_in(primary, OPERATOR)
    site.go("rules")
    page.wait_text("takes the role admin")
    assert page.evaluate(
        "document.querySelector('#edit-rules').disabled && document.querySelector('#rule-ask').disabled"
    )
    site.log_in(primary, ADMIN)
    site.go("rules")
    page.wait_text("There are no rules at")
    _type_rules_with_a_slip(site, kept)
    page.click("#rule-user")
    page.type("olga")
    page.press("Tab")
    page.evaluate("document.querySelector('#rule-action').value = 'purge'")
    page.press("Tab")
    page.type("orders.7")
    page.press("Enter")
    page.wait_text(f"olga may purge orders.7: acl.rules, entry 2: {kept}")
    deciding = (
        "[...document.querySelectorAll('td')].find((one) => one.textContent === 'this one')?.parentElement.innerText"
    )
    page.wait(f"{deciding}?.includes('administer')")
    page.click("#append-rule")
    page.type("deny olga purge orders.*")
    page.press("Enter")
    site.close_done("4 lines of rules")
    page.click("button[aria-label='Change line 4: deny olga purge orders.*']")
    page.evaluate("document.querySelector('dialog [name=place]').value = ''")
    page.click("dialog button[type=submit]")
    page.wait("document.querySelector('dialog [name=place]').getAttribute('aria-invalid') === 'true'")
    page.evaluate("document.querySelector('dialog [name=place]').value = '2'")
    page.click("dialog button[type=submit]")
    site.close_done("4 lines of rules")
    page.click("#rule-ask")
    page.wait_text("olga may not purge orders.7: acl.rules, entry 2: deny olga purge orders.*")
    page.wait(f"{deciding}?.includes('deny')")
    decision = primary.ask("check-acl", user="olga", action="purge", node="orders.7")
    assert page.evaluate("document.querySelector('#rule-answer').textContent").endswith(decision["reason"])
    for scheme in ("light", "dark"):
        for width in (400, 1280):
            page.resize(width, 860, scheme)
            assert page.evaluate(NO_SCROLLING), (width, scheme)
            assert accessibility_problems(page) == [], (width, scheme)
            page.screenshot(SHOTS / f"rules-{width}-{scheme}.png")
    _remove_rules_beside_somebody_else(site, kept)


def _type_rules_with_a_slip(site: Site, kept: str) -> None:
    """What is refused stays as it was typed, with the reason beside it."""
    page = site.page
    page.click("#edit-rules")
    typed = f"# who may\n{kept}\nallow olga publsh orders.*"
    page.type(typed)
    page.click("dialog button[type=submit]")
    page.wait("document.querySelector('dialog .problem').textContent.includes('entry 3')")
    problem = "document.querySelector('dialog label:has(textarea) + .problem')"
    assert "did you mean publish?" in page.evaluate(f"{problem}.textContent"), "beside the field"
    assert page.evaluate("document.activeElement.value") == typed
    assert page.evaluate(f"document.activeElement.getAttribute('aria-describedby') === {problem}.id")
    page.screenshot(SHOTS / "rules-refused.png")
    assert accessibility_problems(page) == []
    page.evaluate("document.activeElement.value = document.activeElement.value.replace('publsh', 'publish')")
    page.click("dialog button[type=submit]")
    site.close_done("3 lines of rules are kept by the cluster")
    page.wait_text("2 lines of the cluster")


def _remove_rules_beside_somebody_else(site: Site, kept: str) -> None:
    page, primary = site.page, site.cluster.the_primary()
    page.click("button[aria-label^='Remove line 4']")
    primary.ask("settings", action="set", key="acl.rules", value=[kept, "deny bob purge"])
    page.click("dialog button[type=submit]")
    page.wait_text("somebody has changed the rules meanwhile")
    page.press("Escape")
    page.click("button[aria-label='Remove line 2: deny bob purge']")
    page.click("dialog button[type=submit]")
    site.close_done("1 line of rules")
    assert primary.ask("get", key="acl.rules")["acl.rules"] == [kept]
    page.click("#unset-rules")
    page.click("dialog button[type=submit]")
    site.close_done("The cluster keeps no rules any more")
    page.wait_text("There are no rules at")


def test_the_list_of_queues_is_sorted_filtered_and_made_of_what_is_in_sight(site: Site) -> None:
    page = site.page
    site.log_in(site.cluster.the_primary(), VIEWER)
    site.go("queues")
    page.wait_text("301 of 301 queues")
    first = "document.querySelector('.list tbody a').textContent"
    page.wait(f"{first} === 'orders.7'")
    assert page.evaluate("document.querySelectorAll('.list tbody a').length") < 100
    page.screenshot(SHOTS / "queues.png")
    page.click(".list th button")  # by name
    page.wait(f"{first} === {json.dumps(HTML_NAME)}")
    assert page.evaluate("document.querySelector('.list img')") is None
    page.evaluate("document.querySelector('.list').focus()")
    page.press("End")
    page.wait("[...document.querySelectorAll('.list tbody a')].some((link) => link.textContent === 'orders.99')")
    page.click("#filter")
    page.type("orders.29?")
    page.wait_text("10 of 301 queues")
    page.wait(f"{first} === 'orders.290'")


def test_charts_have_axes_with_units_and_local_times_and_say_the_same_in_words_and_as_a_table(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    sender = BlockingClient(site.cluster.urls[site.cluster.brokers.index(primary)])
    site.log_in(primary, VIEWER)
    site.go("charts")
    page.wait_text("Messages in queues")
    link = sender.sender("orders.9")
    chart = f"{CHARTS}.find((one) => one.querySelector('h3').textContent === 'Messages in')"
    page.wait(f"{chart}.querySelector('.legend').innerText.includes('now 0/s')")
    for _ in range(100):
        link.send(Message(body="x"))
    page.wait(f"{chart}.querySelector('.legend').innerText.match(/to [1-9][0-9.,]*\\/s/)")
    page.evaluate("document.querySelector('#span').value = '20m'")
    page.evaluate("document.querySelector('#span').dispatchEvent(new Event('change'))")
    page.wait(f"/h0L/.test({chart}.querySelector('.plot path').getAttribute('d'))")
    assert page.evaluate(f"[...{chart}.querySelectorAll('.tick')].some((one) => one.textContent.endsWith('/s'))")
    times = f"[...{chart}.querySelectorAll('.tick.time')].map((one) => one.textContent)"
    page.wait(f"{times}.length > 2 && {times}.every((one) => /^[0-2][0-9]:[0-5][05]$/.test(one))")
    label = f"{chart}.querySelector('svg[role=img]').getAttribute('aria-label')"
    now = "String(new Date().getHours()).padStart(2, '0')"
    page.wait(f"{label}.match(/Messages in, from [0-9:]+ to ([0-9]+):/)[1] === {now}")
    page.evaluate(f"{chart}.querySelector('svg[role=img]').focus()")
    page.press("End")
    page.wait(f"{chart}.querySelector('.reading').textContent.match(/[0-9]+:[0-9]+:[0-9]+: .*\\/s/)")
    page.evaluate(f"{chart}.querySelector('summary').focus()")
    page.press("Enter")
    page.wait(f"[...{chart}.querySelectorAll('td')].some((one) => one.textContent.endsWith('/s'))")
    page.screenshot(SHOTS / "charts.png")
    assert accessibility_problems(page) == []
    for name in ("Time to confirm", "Memory of the process", "Open descriptors"):
        words = f"{CHARTS}.find((one) => one.querySelector('h3').textContent === {json.dumps(name)})"
        page.wait(f"/now [0-9]|from [0-9]/.test({words}.querySelector('.legend').innerText)")
    site.go("queue/orders.9")
    page.wait(f"/In: .* to [1-9]/.test({CHARTS}[1].innerText)")
    assert "to 100" in page.evaluate(f"{CHARTS}[0].querySelector('.legend').innerText")
    page.screenshot(SHOTS / "queue.png")
    sender.connection.close()
    primary.ask("queues", action="purge", name="orders.9")


def test_the_page_of_one_broker_shows_the_figures_queues_and_connections_of_all(site: Site) -> None:
    page, cluster = site.page, site.cluster
    primary = cluster.the_primary()
    backup, silent = [broker for broker in cluster.brokers if broker is not primary]
    client = BlockingClient(cluster.urls[cluster.brokers.index(primary)])
    client.receiver("orders.7", 0)
    site.log_in(backup, VIEWER)
    site.go("charts")
    memory = f"{CHARTS}.find((one) => one.querySelector('h3').textContent === 'Memory of the process')"
    page.wait(f"{memory}.querySelectorAll('path.line').length === 6")  # with those of the legend
    assert all(f"{broker.name}: now" in page.evaluate(f"{memory}.innerText") for broker in cluster.brokers)
    page.wait(f"/{primary.name}: now [1-9]|^now [1-9]/m.test({CHARTS}[2].innerText)")
    assert accessibility_problems(page) == []
    page.screenshot(SHOTS / "charts-of-all.png")
    site.go("connections")
    page.wait_text("no credit")
    page.wait(f"[...document.querySelectorAll('td')].some((one) => one.textContent === {json.dumps(primary.name)})")
    client.connection.close()
    site.go("queues")
    page.wait("document.querySelector('#broker').options.length === 3")
    page.evaluate(f"""(() => {{ const choice = document.querySelector('#broker');
        choice.value = [...choice.options].find((one) => one.text === {json.dumps(primary.name)}).value;
        choice.dispatchEvent(new Event('change')); }})()""")
    page.wait("document.querySelector('.list tbody a').hash.split('/').length === 4")
    page.click(".list tbody a")
    page.wait_text("This is how the broker at")
    page.wait(f"/now 5/.test({CHARTS}[0].innerText)")
    site.go("charts")
    page.wait(f"{memory}.querySelectorAll('path.line').length === 6")
    pid = silent.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        page.wait(f"document.querySelector('ul.wrongs').innerText.includes('no figures of {silent.name}')")
        page.wait(f"{memory}.querySelectorAll('path.line').length === 4")
        newest = f"{memory}.querySelector('svg[role=img]').getAttribute('aria-label')"
        before = page.evaluate(newest)
        page.wait(f"{newest} !== {json.dumps(before)}")
        page.screenshot(SHOTS / "charts-silent.png")
        assert accessibility_problems(page) == []
    finally:
        with suppress(ProcessLookupError):  # its agent has killed it
            os.kill(pid, signal.SIGCONT)
    page.wait(f"{memory}.querySelectorAll('path.line').length === 6")
    cluster.wait_whole()


def test_an_operator_looks_at_a_message_which_is_shown_and_never_run_and_moves_it(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    site.log_in(primary, VIEWER)
    site.go("queue/orders.7")
    page.wait_text("the role viewer")
    assert page.evaluate("document.querySelector('#browse').disabled")
    site.log_in(primary, OPERATOR)
    site.go("queue/orders.7")
    page.click("#browse")
    page.wait_text("5 messages. Browsing changes nothing.")
    page.screenshot(SHOTS / "messages.png")
    assert accessibility_problems(page) == []
    page.click("button[aria-label^='Look at']")
    page.wait("document.querySelector('dialog pre:last-of-type').textContent === '<script>alert(2)</script>'")
    assert page.evaluate("document.querySelector('dialog script')") is None
    page.screenshot(SHOTS / "message.png")
    assert accessibility_problems(page) == []
    page.press("Escape")
    page.wait("!document.querySelector('dialog').open")
    page.click("button[aria-label^='Move message']")
    page.type("orders.8")
    page.press("Enter")
    site.close_done("1 message moved to orders.8")
    page.wait_text("4 messages. Browsing changes nothing.")
    page.click("#move")
    page.type("no-such-queue")
    page.press("Enter")
    page.wait("document.querySelector('dialog .problem').textContent.includes('no-such-queue')")
    page.press("Escape")
    assert [primary.ask("queues", action="read", name=name)["messages"] for name in ("orders.7", "orders.8")] == [4, 1]
    primary.ask("queues", action="move", name="orders.8", to="orders.7")


def test_connections_show_what_their_links_wait_for_and_an_operator_closes_one(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    client = BlockingClient(site.cluster.urls[site.cluster.brokers.index(primary)])
    client.receiver("orders.7", 0)
    site.log_in(primary, OPERATOR)
    site.go("connections")
    page.wait_text("no credit")
    page.screenshot(SHOTS / "connections.png")
    page.click("button.close")
    page.wait_text("amqp:connection:forced")
    page.click("dialog button[type=submit]")
    site.close_done("was closed.")
    page.wait("!document.body.innerText.includes('no credit')")
    with suppress(ProtonException):  # it was closed
        client.connection.close()


def test_an_operator_sees_what_a_file_of_definitions_would_do_and_has_it_done(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    site.log_in(primary, OPERATOR)
    site.go("definitions")
    page.click("#dry-run")
    page.wait_text("choose a file first")
    for queues, text in (
        ([{"name": "defined"}, {"name": "orders.7", "arguments": {"qpid.max_count": 5}}], "nothing can be done"),
        ([{"name": "defined"}, {"name": "orders.7"}], "1 to do, 1 there as defined."),
    ):
        file = json.dumps(json.dumps({"format": 1, "queues": queues}))
        page.evaluate(f"""(() => {{ const given = new DataTransfer(); given.items.add(new File([{file}], 'x.json'));
            const input = document.querySelector('#definitions-file'); input.files = given.files;
            input.dispatchEvent(new Event('change')); }})()""")
        page.click("#dry-run")
        page.wait_text(text)
        page.screenshot(SHOTS / "definitions.png")
        assert accessibility_problems(page) == []
    assert "defined" not in [row["name"] for row in primary.ask("queues", action="list")["answer"]]
    page.click("#apply")
    page.press("Tab")
    page.press("Enter")
    site.close_done("1 definition imported.")
    primary.ask("queues", action="delete", name="defined")


def test_a_proxy_is_shown_with_the_brokers_to_which_it_relays(site: Site) -> None:
    """The page as it reads what a proxy says that has no primary: `test_page_proxies` has real ones, which have."""
    page = site.page
    site.log_in(site.cluster.the_primary(), VIEWER)
    link = {"direction": "out", "node": "orders", "credit": 1, "unsettled": 0, "waits_for": "no message"}
    far, whose = {**link, "relayed_to": "node1"}, "olga (c) at 192.0.2.9:7 by way of node2"
    row = {"user": "olga", "address": "192.0.2.9:7", "container": "c", "kind": "client", "since_ms": 1, "unsettled": 0}
    connections = [
        {**row, "broker": "node2", "id": 1, "links": [far, {**far, "waits_for": "a primary of its resource set"}]},
        {**row, "broker": "node2", "id": 2, "links": [far, link]},
        {**row, "broker": "node1", "id": 3, "kind": "proxy", "links": [{**link, "relayed_for": whose}]},
    ]
    given = json.dumps({"connections": connections, "silent": []})
    page.evaluate(ANSWERING.replace("GIVEN", given))
    site.go("connections")
    page.wait_text("Brokers whose clients are served by others")
    table = "[...document.querySelectorAll('table')].find((one) => one.caption.textContent === 'Proxies')"
    shown = page.evaluate(f"[...{table}.querySelectorAll('tbody td')].map((one) => one.textContent)")
    assert shown == ["node2", "node1", "2", "3", "1"]
    assert whose not in page.text(), "among the links of clients"
    assert accessibility_problems(page) == []
    page.resize(400, 860)
    assert page.evaluate(NO_SCROLLING)


def test_a_queue_is_purged_once_that_is_confirmed(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    site.log_in(primary, OPERATOR)
    site.go("queue/" + "".join(f"%{byte:02x}" for byte in HTML_NAME.encode()))
    page.click("#purge")
    page.wait_text("3 of 3 at this moment")
    assert page.evaluate("document.activeElement.textContent") == "Cancel"
    page.screenshot(SHOTS / "purge.png")
    page.press("Escape")
    page.wait("!document.querySelector('dialog').open")
    assert primary.ask("queues", action="read", name=HTML_NAME)["messages"] == 3
    page.click("#purge")
    page.press("Tab")
    page.press("Enter")
    site.close_done(f"3 messages removed from {HTML_NAME}.")
    assert primary.ask("queues", action="read", name=HTML_NAME)["messages"] == 0


def test_an_operator_creates_a_queue_changes_it_binds_it_and_deletes_it_once_that_is_confirmed(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    site.log_in(primary, OPERATOR)
    site.go("queues")
    page.click("#create-queue")
    page.type("made.here")
    page.press("Tab")
    page.type("qpid.max_count=5000\nqpid.no_such=1")
    page.click("dialog button[type=submit]")
    page.wait("document.querySelector('dialog .problem').textContent.includes('unknown argument')")
    page.evaluate("document.querySelector('dialog textarea').value = 'qpid.max_count=5000\\nowner=ada'")
    page.screenshot(SHOTS / "create-queue.png")
    assert accessibility_problems(page) == []
    page.click("dialog button[type=submit]")
    site.close_done("The queue made.here was created.")
    assert primary.ask("queues", action="read", name="made.here")["arguments"] == {
        "qpid.max_count": 5000, "owner": "ada"
    }  # fmt: skip
    page.wait_text("qpid.max_count=5000, owner=ada")
    page.click("#change")
    page.click("dialog button[type=submit]")
    page.wait("document.querySelector('dialog .problem').textContent === 'nothing is another one'")
    page.evaluate("document.querySelector('dialog textarea').value = 'qpid.max_count=100'")
    page.click("dialog button[type=submit]")
    site.close_done("made.here has the arguments: qpid.max_count=100.")
    assert primary.ask("queues", action="read", name="made.here")["arguments"] == {"qpid.max_count": 100}
    page.click("#bind")
    page.type("amq.topic")
    page.press("Tab")
    page.type("made.#")
    page.click("dialog button[type=submit]")
    site.close_done('made.here is bound to amq.topic with the key "made.#".')
    page.wait("[...document.querySelectorAll('td')].some((one) => one.textContent === 'made.#')")
    client = BlockingClient(site.cluster.urls[site.cluster.brokers.index(primary)])
    client.receiver("made.here", 0)
    client.sender("amq.topic").send(Message(subject="made.so", body="x"))
    page.wait("document.querySelector('section[aria-labelledby=consumers-title]').innerText.includes('no credit')")
    page.screenshot(SHOTS / "queue-detail.png")
    assert accessibility_problems(page) == []
    page.resize(400, 860)
    page.wait(NO_SCROLLING)
    page.resize(1280, 860)
    client.connection.close()
    page.click("#publish")
    page.type("<script>alert(4)</script>")
    page.press("Tab")
    page.type("tried")
    page.press("Tab")
    page.type("colour=red")
    page.screenshot(SHOTS / "publish.png")
    assert accessibility_problems(page) == []
    page.click("dialog button[type=submit]")
    site.close_done("is in made.here.")
    shown = primary.ask("queues", action="peek", name="made.here")["messages"][1]
    assert (shown["body"]["content"], shown["properties"]["subject"]) == ("<script>alert(4)</script>", "tried")
    assert (shown["application_properties"], shown["durable"]) == ({"colour": "red"}, True)
    page.wait("document.querySelector('dl.summary dd').textContent === '2'")
    page.click("#delete")
    page.wait("document.querySelector('dialog').innerText.includes('2 messages and')")
    page.click("dialog button[type=submit]")
    page.wait("document.querySelector('dialog .problem').textContent !== ''")
    assert primary.ask("queues", action="read", name="made.here")["messages"] == 2
    page.evaluate("document.querySelector('dialog select').value = 'always'")
    page.click("dialog button[type=submit]")
    site.close_done("The queue made.here was deleted.")
    page.wait("location.hash === '#/queues'")
    assert "made.here" not in [row["name"] for row in primary.ask("queues")["answer"]]


def test_an_operator_makes_an_exchange_binds_a_queue_to_it_and_takes_both_away(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    site.log_in(primary, OPERATOR)
    site.go("exchanges")
    page.wait_text("amq.topic")
    page.click("#create-exchange")
    page.type(HTML_EXCHANGE)
    page.click("dialog button[type=submit]")
    site.close_done("was created.")
    page.click("a[href$='onerror%3Dalert(3)%3E']")
    page.wait_text("Kind: topic.")
    page.click("#bind")
    page.type("orders.7")
    page.press("Tab")
    page.type("a.*")
    page.click("dialog button[type=submit]")
    site.close_done("orders.7 is bound to")
    page.wait_text("1 binding")
    page.screenshot(SHOTS / "exchange.png")
    assert accessibility_problems(page) == []
    page.click("#delete")
    page.click("dialog button[type=submit]")  # only if nothing is bound to it
    page.wait("document.querySelector('dialog .problem').textContent !== ''")
    page.press("Escape")
    page.click("button.unbind")
    page.click("dialog button[type=submit]")
    site.close_done("is not bound to")
    page.wait_text("0 bindings")
    page.click("#delete")
    page.click("dialog button[type=submit]")
    site.close_done("was deleted.")
    page.wait("location.hash === '#/exchanges'")
    assert HTML_EXCHANGE not in [row["name"] for row in primary.ask("exchanges")["answer"]]


def test_settings_show_their_layers_and_who_changed_them(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    primary.ask("settings", action="set", key="max-connections", value=4321)
    site.log_in(primary, VIEWER)
    site.go("settings")
    page.wait(f"{ROWS}.some((row) => /max-connections[^]*4321/.test(row))")
    page.wait(f"{ROWS}.filter((row) => row.includes('max-connections')).length === 2")  # the setting, and its change
    page.screenshot(SHOTS / "settings.png")
    assert accessibility_problems(page) == []
    primary.ask("settings", action="unset", key="max-connections")
    site.go("cluster")
    site.go("settings")
    page.wait_text("taken away")


def test_sessions_of_clients_are_shown_and_an_operator_ends_one(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    site.log_in(primary, OPERATOR)
    row = {"session": "0123456789ab", "user": "ada", "state": "waiting", "for_s": 5, "timeout_s": 60, "connections": 2,
           "held": 3, "client": None, "broker": None}  # fmt: skip
    page.evaluate(f"""(() => {{ const real = window.fetch; window.asked = [];
        window.fetch = async (path, options) => {{
            const body = options?.body ? JSON.parse(options.body) : {{}};
            if (body.method !== "sessions") return real(path, options);
            asked.push(body.params);
            const result = body.params.action === "list" ? [{json.dumps(row)}] : {{}};
            return new Response(JSON.stringify({{ result }}));
        }}; }})()""")
    site.go("sessions")
    page.wait_text("0123456789ab")
    page.screenshot(SHOTS / "sessions.png")
    assert accessibility_problems(page) == []
    page.click("button.end")
    page.wait_text("3 messages at this moment")
    page.click("dialog button[type=submit]")
    site.close_done("The session 0123456789ab was ended.")
    page.wait("asked.some((one) => one.action === 'end' && one.name === '0123456789ab')")


def test_a_viewer_can_press_nothing_that_changes_something(site: Site) -> None:
    page = site.page
    site.log_in(site.cluster.the_primary(), VIEWER)
    for view, text, buttons in (
        ("queues", "301 of 301", "#create-queue"),
        ("queue/orders.7", "Consumers", "#publish, #move, #change, #bind, #purge, #delete"),
        ("exchanges", "amq.topic", "#create-exchange"),
        ("exchange/amq.topic", "Kind: topic.", "#bind, #delete"),
    ):
        site.go(view)
        page.wait_text(text)
        number = len(buttons.split(","))
        page.wait(f"document.querySelectorAll({json.dumps(buttons)}).length === {number}")
        page.wait(f"[...document.querySelectorAll({json.dumps(buttons)})].every((button) => button.disabled)")
    for method, params, needed in (
        ("queues", {"action": "create", "name": "q"}, "queues create takes operator"),
        ("queues", {"action": "publish", "name": "orders.7"}, "queues publish takes operator"),
        ("queues", {"action": "delete", "name": "orders.7"}, "queues delete takes operator"),
        ("exchanges", {"action": "bind", "name": "amq.topic", "queue": "orders.7"}, "exchanges bind takes operator"),
    ):
        asked = f"""import('/page/broker.js').then((broker) => broker.call({json.dumps(method)}, {json.dumps(params)}))
            .then(() => 'done', (error) => error.message)"""
        assert needed in page.evaluate(asked)


def test_an_operator_pauses_the_agents_and_lets_them_go_on(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    site.log_in(primary, OPERATOR)
    page.click("#pause")
    page.wait_text("What could be lost")
    page.screenshot(SHOTS / "pause.png")
    page.press("Enter")
    site.close_done("agents are paused by operator on the web page of")
    page.wait_text("a primary that dies is not replaced")
    page.click("button.copy[aria-label='Copy qpid-ha resume']")
    page.wait("/^(Copied|Selected): qpid-ha resume$/.test(document.querySelector('#announce').textContent)")
    assert accessibility_problems(page) == []
    page.click("#pause")
    page.press("Tab")
    page.press("Enter")
    site.close_done("agents go on; it was paused by operator")
    page.wait(NOTHING_ELSE)


def test_a_page_sees_a_failover_and_another_one_that_its_broker_is_gone(site: Site) -> None:
    page, cluster = site.page, site.cluster
    lost = cluster.the_primary()
    backup = next(broker for broker in cluster.brokers if broker is not lost)
    site.log_in(backup, VIEWER)
    page.screenshot(SHOTS / "cluster.png")
    page.evaluate("""window.said = []; const region = document.getElementById('announce');
        new MutationObserver(() => said.push(region.textContent)).observe(region, {childList: true})""")
    lost.kill()
    page.wait("said.some((text) => /broker\\d is primary/.test(text))")
    page.screenshot(SHOTS / "failover.png")
    cluster.wait_whole()
    page.wait(NOTHING_ELSE)
    site.go("history")
    page.wait_text("Generation 2")
    assert page.evaluate("document.querySelectorAll('.timeline li').length") >= 2
    page.screenshot(SHOTS / "history.png")
    backup.kill()
    page.wait_text(f"{backup.name} has not answered since")
    page.screenshot(SHOTS / "lost.png")
    cluster.wait_whole()


def test_an_operator_switches_over_to_a_backup(site: Site) -> None:
    page, cluster = site.page, site.cluster
    before = cluster.the_primary()
    site.log_in(before, OPERATOR)
    page.click("#switchover")
    to = page.evaluate("document.querySelector('dialog option:last-child').value")
    page.evaluate(
        "document.querySelector('dialog select').value = document.querySelector('dialog option:last-child').value"
    )
    page.screenshot(SHOTS / "switchover.png")
    page.click("dialog button[type=submit]")
    site.close_done("")
    page.wait(f"document.querySelector('table.cards td').textContent === {json.dumps(to)}")
    page.wait_text(f"It is asked of the primary: open the page of {to}.")
    cluster.wait_whole()
    assert cluster.the_primary().name == to


def test_nothing_scrolls_sideways_on_a_small_screen_in_light_and_dark(site: Site) -> None:
    page = site.page
    site.log_in(site.cluster.the_primary(), OPERATOR)
    for scheme in ("light", "dark"):
        page.resize(400, 860, scheme)
        for view, text in (
            ("cluster", "Brokers"),
            ("charts", "Time to confirm"),
            ("queues", "301 of 301"),
            ("queue/orders.7", "Purge"),
            ("sessions", "sessions of clients"),
            ("remote-nodes", "outside of this cluster"),
            ("settings", "By default"),
            ("users", "of the cluster"),
            ("definitions", "Nothing is ever deleted."),
            ("rules", "Who may do what"),
            ("exchanges", "amq.topic"),
            ("exchange/amq.topic", "Kind: topic."),
            ("connections", "of all kinds"),
            ("history", "Generation"),
        ):
            site.go(view)
            page.wait_text(text)
            page.screenshot(SHOTS / f"{view.partition('/')[0]}-400-{scheme}.png")
            assert page.evaluate(NO_SCROLLING), (view, scheme)
            assert accessibility_problems(page) == [], (view, scheme, 400)
        page.resize(1280, 860, scheme)
        for view, text in (
            ("charts", "now"),
            ("queues", "301 of 301"),
            ("connections", "of all kinds"),
            ("cluster", "Actions"),
        ):
            site.go(view)
            page.wait_text(text)
            assert accessibility_problems(page) == [], (view, scheme)
        page.screenshot(SHOTS / f"cluster-{scheme}.png")
        page.evaluate(f"document.getElementById('view').insertAdjacentHTML('beforeend', {json.dumps(EVERY_COLOUR)})")
        assert accessibility_problems(page) == [], ("what is seldom shown", scheme)
        page.evaluate("document.getElementById('colours').remove()")
        page.click("#pause")
        page.wait_text("What could be lost")
        assert accessibility_problems(page) == [], ("dialog", scheme)
        page.press("Escape")
        page.wait("!document.querySelector('dialog').open")


def test_what_would_keep_people_out_is_seen(site: Site) -> None:
    page = site.page
    site.log_in(site.cluster.the_primary(), VIEWER)
    page.evaluate(f"document.getElementById('view').insertAdjacentHTML('beforeend', {json.dumps(BARRIERS)})")
    page.evaluate("document.getElementById('unseen').style.outline = 'none'")
    found = accessibility_problems(page)
    page.evaluate("document.getElementById('barriers').remove()")
    for problem in (
        "button without a name", "textbox without a name", "contrast 1.", "focus cannot be seen on <button#unseen",
        "<button#first", "after a heading of level 2 comes <h4", "#view is there twice",
        "aria-describedby names #nowhere", "nobody is told of <p",
    ):  # fmt: skip
        assert any(problem in each for each in found), (problem, found)


def test_resource_sets_are_shown_with_their_primaries_and_what_was_done_about_them(site: Site) -> None:
    page, primary = site.page, site.cluster.the_primary()
    site.have_a_set()
    site.log_in(primary, VIEWER, rows=4)
    page.wait("[...document.querySelectorAll('table')][1].querySelector('tbody tr').innerText.includes('ok')")
    page.wait(NOTHING_ELSE)
    page.screenshot(SHOTS / "sets.png")
    page.click("a[href='#/set/audit']")
    page.wait("document.querySelector('section[aria-labelledby=waits-title]')?.innerText.includes('Nothing.')")
    leader = primary.ask("sets", action="show", name="audit")["primary"]
    page.wait(
        f"{ROWS}.length === 3 && {ROWS}.some((row) => row.startsWith({json.dumps(leader)}) && row.includes('leads it'))"
    )
    assert page.evaluate("document.querySelector('nav a[aria-current]').textContent") == "Cluster"
    site.go("set/none")
    page.wait_text("there is no set none")
    site.go("history")
    page.wait_text("What the controller did about resource sets")
    page.wait("[...document.querySelectorAll('.timeline')][1].innerText.includes('audit')")


def test_a_group_is_shown_as_one_and_its_queues_with_who_hands_out(site: Site) -> None:
    """The page as it reads what a broker with groups says: these have none, for want of Corosync."""
    page, primary = site.page, site.cluster.the_primary()
    row = {
        "strategy": "group", "generation": 3, "in_sync": ["node1", "node2"], "lags": {}, "queues": 1, "messages": 2,
        "replicas": {"node1": "primary", "node2": "ready"}, "problem": "",
    }  # fmt: skip
    groups = [
        row | {"name": "bills", "primary": "node1", "state": "ok"},
        row | {"name": "calls", "primary": "", "state": "changing"},
        row | {"name": "deals", "primary": "", "state": "no member serves", "problem": "node1 is away", "replicas": {}},
    ]
    own = {"set": "deals", "role": "withheld", "reason": "some are missing", "stuck_queues": []}
    site.have_a_set()
    site.log_in(primary, VIEWER, rows=4)
    page.evaluate(REPLACING.replace("GIVEN", json.dumps({"sets": groups, "groups": [own]})))
    page.wait_text("no member serves")
    shown = page.evaluate(
        "[...document.querySelectorAll('main table')[1].querySelectorAll('tbody tr')].map(r => r.innerText)"
    )
    assert all("group" in line and "node1, node2" in line for line in shown)
    assert ["each in sync serves" in line for line in shown] == [True, True, False]
    assert "node1 (serves), node2 (serves)" in shown[0]
    page.screenshot(SHOTS / "groups.png")
    site.go("queue/orders.7")
    page.wait_text("Handed out by")
    page.wait("document.querySelector('dl.summary').innerText.includes('node2, node3')")


def test_the_page_asks_the_broker_that_served_it_and_nobody_else(site: Site) -> None:
    assert site.page.requests
    assert {re.match(r"http://127\.0\.0\.1:\d+/|data:", url) is not None for url in site.page.requests} == {True}
