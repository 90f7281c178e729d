"""Publish over failovers with Proton's BlockingConnection: python blocking.py QUEUE amqp://node1 amqp://node2 ..."""

import itertools
import sys
import time

from proton import Message, ProtonException
from proton.utils import BlockingConnection

queue, *urls = sys.argv[1:]
numbers = itertools.count()
number = next(numbers)
for url in itertools.cycle(urls):  # urls=[...] of BlockingConnection gives up at the first that does not serve
    try:
        sender = BlockingConnection(url, timeout=5, heartbeat=2).create_sender(queue)
        while True:
            sender.send(Message(number, durable=True))  # is safe when this returns; else it is sent again
            print(number, flush=True)
            number = next(numbers)
            time.sleep(0.05)
    except ProtonException:
        time.sleep(0.1)
