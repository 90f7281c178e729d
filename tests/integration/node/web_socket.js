// rhea over the WebSocket of the platform: sends two messages to an address and gets them back.
//
//     node --experimental-websocket web_socket.js URL ADDRESS
'use strict';

const rhea = require('rhea');

const [url, address] = process.argv.slice(2);
const container = rhea.create_container();
const sizes = [];
container.on('connection_open', context => {
    context.connection.open_receiver(address);
    context.connection.open_sender(address);
});
container.once('sendable', context => {
    for (const body of ['a', 'b'.repeat(200000)]) context.sender.send({ body });
});
container.on('message', context => {
    sizes.push(context.message.body.length);
    if (sizes.length === 2) context.connection.close();
});
container.on('connection_close', () => console.log(JSON.stringify(sizes)));
container.connect({
    connection_details: container.websocket_connect(WebSocket)(url, ['amqp']),
    reconnect: false,
    username: 'anonymous',
});
