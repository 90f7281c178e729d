"""What the controller asks a primary of which it does not hear: whether it lives, and leads.

On the connections that brokers share, as members ask each other: the way on which reports come may be what is broken.
"""

from __future__ import annotations

from collections.abc import Callable

from qpid_ha_broker.cluster.messages import AskBroker, BrokerAnswered
from qpid_ha_broker.ha.effects import Ask, Input, PeersAnswered
from qpid_ha_broker.ha.frames import Question, Topic
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.peers.peer_asker import QuestionCarrier


class LeaderQuestions:
    """The promise: whoever says that he leads the set is the broker that was asked, and answers that question.

    `name` and `instance` are of this broker.
    """

    def __init__(self, questions: QuestionCarrier, name: str, instance: str) -> None:
        self._questions = questions
        self._name, self._instance = name, instance

    def ask(self, effect: AskBroker, feed: Callable[[BrokerAnswered], None]) -> None:
        """Feed what comes of it, once, and within its limit."""

        def answered(happened: Input) -> None:
            generations = [
                answer.generation
                for answer in (happened.answers if isinstance(happened, PeersAnswered) else ())
                if answer.granted and (answer.name, answer.state) == (effect.name, State.PRIMARY)
            ]
            feed(BrokerAnswered(effect.name, effect.set, max(generations, default=0)))

        question = Question(
            0, Topic.STATUS, self._name, self._instance, effect.cluster, effect.generation, 0, "", effect.set
        )
        self._questions.ask_for(Ask(question, (effect.address,), effect.limit_s), answered)
