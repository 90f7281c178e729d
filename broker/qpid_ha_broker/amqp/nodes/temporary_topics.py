"""Topics that were made for a link, by a dynamic address: keys of an exchange, which nobody has to make or to delete.

What is known of them is who uses them here, so that a topic goes with the link that it was made for. Nothing of that is
replicated: the link ends with this broker, too, or comes back by way of a proxy, with its topic.
"""

from __future__ import annotations

from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint


class TemporaryTopics:
    """The promise: who publishes to a topic, or subscribes to it by its name, hears of its end, once."""

    def __init__(self) -> None:
        self._topics: dict[LinkEndpoint, str] = {}
        """Which one each link uses."""
        self._links: dict[str, dict[LinkEndpoint, None]] = {}
        """Who uses a topic, the link that it was made for included."""
        self._owners: dict[str, LinkEndpoint] = {}

    def __len__(self) -> int:
        """How many are used."""
        return len(self._links)

    def joined(self, link: LinkEndpoint, topic: str, *, owns: bool) -> None:
        """`link` uses `topic`; `owns`: it was made for it."""
        self._topics[link] = topic
        self._links.setdefault(topic, {})[link] = None
        if owns:
            self._owners[topic] = link

    def left(self, link: LinkEndpoint, *, may_return: bool) -> tuple[str, list[LinkEndpoint]]:
        """`link` has ended: the topic that has gone with it, and who else uses that; empty: none has.

        `may_return`: by way of another broker; then its topic stays.
        """
        topic = self._topics.pop(link, "")
        if not topic:
            return "", []
        links = self._links[topic]
        del links[link]
        if not links:
            del self._links[topic]
        if self._owners.get(topic) is not link:
            return "", []
        del self._owners[topic]
        return ("", []) if may_return else (topic, list(links))
