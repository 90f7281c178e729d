"""Send ten messages and take them, over failovers: python exactly_once.py amqp://node1,node2,node3"""

import sys

from proton import Message

from qpid_ha_client import SessionClient

with SessionClient(sys.argv[1]) as client:
    sender, receiver = client.sender("orders"), client.receiver("orders")
    for number in range(10):
        sender.send(Message(number, durable=True))  # is queued once when this returns
    for _ in range(10):
        order = receiver.receive()  # comes once
        print(order.body)
        order.accept()
    print("guarantee:", client.guarantee.value)
