'use strict';
// A publisher as rhea's documentation has it: connection_details gives one address after the other, rhea reconnects.
// `node publisher.js QUEUE URL...` sends numbered messages one after the other, each until it is accepted, and prints the
// number of each that was.
const rhea = require('rhea');

const [queue, ...urls] = process.argv.slice(2);
let number = 0;
let isDue = true;
let attempts = 0;

const connection = rhea.connect({
    connection_details: () => {
        const url = new URL(urls[attempts++ % urls.length]);
        return { host: url.hostname, port: Number(url.port) };
    },
});
const sender = connection.open_sender(queue);

function send() {
    if (isDue && sender.sendable()) {
        isDue = false;
        sender.send({ body: String(number) });
    }
}

function againSoon() {
    setTimeout(() => {
        isDue = true;
        send();
    }, 20);
}

// A broker, the first or another one, knows nothing of what was under way.
sender.on('sender_open', () => { isDue = true; });
sender.on('sendable', send);
sender.on('accepted', () => {
    console.log(number++);
    againSoon();
});
sender.on('rejected', againSoon);
sender.on('released', againSoon);
connection.on('disconnected', (context) => console.error('disconnected', context.error ? context.error.message : ''));
connection.on('connection_error', (context) => console.error('connection_error', context.error.condition));
