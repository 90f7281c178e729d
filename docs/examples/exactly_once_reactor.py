"""The same for Proton's reactor: python exactly_once_reactor.py amqp://node1,node2,node3"""

import sys

from proton import Message
from proton.reactor import Container

from qpid_ha_client import SessionHandler


class Orders(SessionHandler):
    def on_start(self, event):
        sender = self.create_sender("orders")
        for number in range(10):
            sender.send(Message(number, durable=True))  # `on_confirmed` tells when it is queued, once
        self.create_receiver("orders")

    def on_message(self, received):  # comes once
        print(received.body)
        received.accept()

    def on_answered(self, receiver, ticket):
        if ticket == 10:
            print("guarantee:", self.guarantee.value)
            self.close()


Container(Orders(sys.argv[1])).run()
