'use strict';
// One small AMQP client: `node client.js PORT STORY ADDRESS` plays a story with rhea, prints what it saw as JSON.
// Everything waits for an event; a story that hangs is ended by the watchdog, with exit code 1.

const rhea = require('rhea');

const [port, story, address] = [Number(process.argv[2]), process.argv[3], process.argv[4]];
const seen = { bodies: [] };
const container = rhea.create_container({ id: `rhea-${process.pid}` });

setTimeout(() => {
    console.error(`the story ${story} came to a halt: ${JSON.stringify(seen)}`);
    process.exit(1);
}, 20000).unref();

function connect(options) {
    return container.connect(Object.assign({ host: '127.0.0.1', port: port, reconnect: false }, options));
}

function finish(connection) {
    connection.once('connection_close', () => console.log(JSON.stringify(seen)));
    connection.close();
}

// Calls `then` when all `messages` are accepted; `seen.outcomes` says what became of each.
function send(connection, target, messages, then) {
    const sender = connection.open_sender(target);
    let sent = 0;
    let answered = 0;
    seen.outcomes = [];
    sender.on('sendable', () => {
        while (sender.sendable() && sent < messages.length) {
            sender.send(messages[sent++]);
        }
    });
    for (const outcome of ['accepted', 'rejected', 'released', 'modified']) {
        sender.on(outcome, (context) => {
            const error = context.delivery.remote_state && context.delivery.remote_state.error;
            seen.outcomes.push(error ? `${outcome}: ${error.condition}` : outcome);
            if (++answered === messages.length) {
                sender.close();
                then();
            }
        });
    }
}

function receive(connection, source, count, then) {
    const receiver = connection.open_receiver({ source: source, credit_window: 0, autoaccept: true });
    receiver.on('message', (context) => {
        seen.bodies.push(context.message.body);
        if (seen.bodies.length === count) {
            then(receiver);
        }
    });
    receiver.add_credit(count);
}

const stories = {
    'send-and-receive': () => {
        const connection = connect();
        const messages = Array.from({ length: 100 }, (_, n) => ({
            body: n,
            subject: 'number',
            application_properties: { even: n % 2 === 0 },
        }));
        send(connection, address, messages, () => receive(connection, address, 100, () => finish(connection)));
    },

    'at-most-once': () => {
        const connection = connect();
        const sender = connection.open_sender({ target: address, snd_settle_mode: 1 });
        sender.once('sendable', () => {
            for (const body of ['a', 'b', 'c']) {
                sender.send({ body: body });
            }
        });
        const receiver = connection.open_receiver({ source: address, snd_settle_mode: 1 });
        receiver.on('message', (context) => {
            seen.bodies.push(context.message.body);
            seen.settled = context.delivery.remote_settled;
            if (seen.bodies.length === 3) {
                finish(connection);
            }
        });
    },

    selector: () => {
        const connection = connect();
        const messages = ['red', 'blue', 'red'].map((color, n) => ({
            body: `${color}-${n}`,
            application_properties: { color: color },
        }));
        const source = { address: address, filter: rhea.filter.selector("color = 'red'") };
        send(connection, address, messages, () => receive(connection, source, 2, () => finish(connection)));
    },

    browse: () => {
        const connection = connect();
        const source = { address: address, distribution_mode: 'copy' };
        send(connection, address, [{ body: 'a' }, { body: 'b' }], () =>
            receive(connection, source, 2, () => finish(connection)));
    },

    // Two credits give two messages; a drain gives the rest, and the credit back.
    'credit-and-drain': () => {
        const connection = connect();
        send(connection, address, ['a', 'b', 'c', 'd'].map((body) => ({ body: body })), () => {
            receive(connection, address, 2, (receiver) => {
                seen.first = seen.bodies.slice();
                receiver.once('receiver_drained', () => {
                    seen.credit = receiver.credit;
                    finish(connection);
                });
                receiver.drain_credit();
                receiver.add_credit(10);
            });
        });
    },

    // A drain without credit is answered too.
    'drain-without-credit': () => {
        const connection = connect();
        const receiver = connection.open_receiver({ source: address, credit_window: 0 });
        receiver.once('receiver_open', () => {
            receiver.once('receiver_drained', () => {
                seen.credit = receiver.credit;
                finish(connection);
            });
            receiver.drain_credit();
        });
    },

    // As JMS does: subscribe, leave, come back without a source, and close that.
    unsubscribe: () => {
        const connection = connect({ container_id: 'reader' });
        const kept = { address: 'amq.topic/news', durable: 2, expiry_policy: 'never' };
        const refused = () => {
            const link = connection.open_receiver({ name: 'paper' });
            link.once('receiver_error', () => {
                seen.condition = link.error.condition;
                finish(connection);
            });
        };
        const unsubscribe = () => {
            const link = connection.open_receiver({ name: 'paper' });
            link.once('receiver_open', () => {
                seen.address = link.source.address;
                link.once('receiver_close', () => setImmediate(refused));
                link.close();
            });
        };
        const link = connection.open_receiver({ name: 'paper', source: kept });
        link.once('receiver_open', () => {
            link.once('receiver_close', () => setImmediate(unsubscribe));
            link.detach();
        });
    },

    // A bridge passes on that a message may have been seen before.
    'first-acquirer': () => {
        const connection = connect();
        seen.marks = [];
        send(connection, address, [{ body: 'a', first_acquirer: false }, { body: 'b' }], () => {
            connection.open_receiver(address).on('message', (context) => {
                seen.marks.push(context.message.first_acquirer);
                if (seen.marks.length === 2) finish(connection);
            });
        });
    },

    large: () => {
        const connection = connect({ max_frame_size: 4096 });
        const body = Buffer.alloc(1024 * 1024, 'abcdefgh');
        send(connection, address, [{ body: rhea.message.data_section(body) }], () => {
            const receiver = connection.open_receiver(address);
            receiver.on('message', (context) => {
                seen.same = body.equals(context.message.body.content);
                finish(connection);
            });
        });
    },

    // A service that answers, and a caller whose reply queue is made for it.
    'request-and-reply': () => {
        const service = connect();
        const relay = service.open_sender({});
        service.open_receiver(address).on('message', (context) => {
            relay.send({
                to: context.message.reply_to,
                correlation_id: context.message.correlation_id,
                body: context.message.body.toUpperCase(),
            });
        });
        const connection = connect();
        const requests = connection.open_sender(address);
        const replies = connection.open_receiver({ source: { dynamic: true } });
        replies.on('receiver_open', () => {
            seen.dynamic = replies.source.address.length > 0;
            requests.send({ reply_to: replies.source.address, correlation_id: 'one', body: 'hello' });
        });
        replies.on('message', (context) => {
            seen.bodies.push(context.message.body);
            seen.correlation_id = context.message.correlation_id;
            service.close();
            finish(connection);
        });
    },

    // Releases, modifies and rejects the first message; what comes next tells what the broker made of it.
    answers: () => {
        const connection = connect();
        send(connection, address, [{ body: 'a' }, { body: 'b' }], () => {
            const receiver = connection.open_receiver({ source: address, credit_window: 0, autoaccept: false });
            const answers = [
                (delivery) => delivery.release(),
                (delivery) => delivery.modified({ delivery_failed: true }),
                (delivery) => delivery.reject({ condition: 'app:no', description: 'not this one' }),
                (delivery) => delivery.accept(),
            ];
            seen.counts = [];
            receiver.on('message', (context) => {
                seen.bodies.push(context.message.body);
                seen.counts.push([context.message.delivery_count || 0, context.message.first_acquirer]);
                answers[seen.bodies.length - 1](context.delivery);
                if (seen.bodies.length === answers.length) {
                    finish(connection);
                } else {
                    receiver.add_credit(1);
                }
            });
            receiver.add_credit(1);
        });
    },

    // The target exists, has room for one message, and says so.
    full: () => {
        const connection = connect();
        send(connection, address, [{ body: 'a' }, { body: 'b' }], () => finish(connection));
    },

    // A link's name that is attached again in its session: the older link ends, and the newer one and the connection stay.
    stolen: () => {
        const connection = connect();
        const attach = () => connection.open_receiver({ name: 'same', source: address, credit_window: 0 });
        send(connection, address, [{ body: 'a' }], () => {
            const older = attach();
            older.remove = () => {}; // rhea knows its links by their names: it would forget the newer one
            older.once('receiver_error', () => {
                seen.condition = older.error.condition;
            });
            older.once('receiver_open', () => {
                const newer = attach();
                newer.once('message', (context) => {
                    seen.bodies.push(context.message.body);
                    finish(connection);
                });
                newer.add_credit(1);
            });
        });
    },

    'credit-beyond-31-bits': () => {
        const connection = connect();
        send(connection, address, ['a', 'b', 'c'].map((body) => ({ body: body })), () => {
            const receiver = connection.open_receiver({ source: address, credit_window: 0, autoaccept: true });
            receiver.on('message', (context) => {
                seen.bodies.push(context.message.body);
                if (seen.bodies.length === 3) finish(connection);
            });
            receiver.add_credit(2 ** 31 + 1);
        });
    },

    // Two messages, one of them in a format of its own, which only its receiver reads.
    'message-format': () => {
        const connection = connect();
        const sender = connection.open_sender(address);
        const data = rhea.message.encode({ body: rhea.message.data_section(Buffer.from('a batch')) });
        seen.formats = [];
        sender.once('sendable', () => {
            sender.send(data, undefined, 0x80013700);
            sender.send({ body: 'plain' });
        });
        connection.open_receiver(address).on('message', (context) => {
            seen.formats.push(context.delivery.format || 0);
            seen.bodies.push(context.message.body || Buffer.from(context.message).includes('a batch'));
            if (seen.bodies.length === 2) finish(connection);
        });
    },

    'malformed-selector': () => {
        const connection = connect();
        const source = { address: address, filter: rhea.filter.selector('color = ') };
        connection.open_receiver({ source }).on('receiver_error', (context) => {
            seen.condition = context.receiver.error.condition;
            send(connection, address, [{ body: 'a' }], () => finish(connection));
        });
    },

    management: () => {
        const connection = connect();
        const requests = connection.open_sender('$management');
        const replies = connection.open_receiver({ source: { dynamic: true } });
        replies.on('receiver_open', () => requests.send({
            reply_to: replies.source.address,
            application_properties: { operation: 'CREATE', type: 'queue', name: address },
            body: { arguments: { 'qpid.max_count': 7 } },
        }));
        replies.on('message', (context) => {
            seen.status = context.message.application_properties.statusCode;
            seen.arguments = context.message.body.arguments;
            finish(connection);
        });
    },
};

if (!stories[story]) {
    console.error(`there is no story ${story}; there are: ${Object.keys(stories).join(' ')}`);
    process.exit(2);
}
stories[story]();
