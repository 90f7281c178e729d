"""Whole clusters on a virtual clock, with seeded faults, and checkers that know nothing of the workload's plans.

The product's own cores run here: members, stores, the agents' decisions. Around them:

- the world: `virtual_time`, `network` and `channel`, `register` (the coordinator), `node` and `node_store` (a machine)
- what happens in it: `plan` draws it from a seed, `faults` and `damage` carry it out; `clients` publish and consume
- who looks after it: `manager` (a cluster resource manager) or `agents`, and the `operator` for honest refusals
- who checks it: `custody` sees who received and who synced what, `ledger` compares that with what clients were told
- brokers with clients that speak AMQP, which relay them to the primary: `proxies_world` and what begins with
  `proxies_`; `streams` carries their bytes, `process_loop` is asyncio for one process, `amqp_client` what all clients
  are (a new kind of client derives from it, as those in `proxies_clients`)
- `cluster` is one run of all this, `runs` many; `shrink` finds the faults that matter, `planted` serves tests that take
  a safeguard out of the product and expect a checker to see it
"""
