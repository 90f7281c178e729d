"""Clusters of brokers that ship, with clients that speak AMQP: kinds `agents`, `proxies` and `forwarding`, and what
`sets` and `group` have of them."""
