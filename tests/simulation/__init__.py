"""Whole clusters on a virtual clock, with seeded faults, and checkers that know nothing of the workload's plans.

What ships runs here: members, stores, whole brokers, agents. Each kind of cluster has a plan, which draws from a seed
what will be there and what goes wrong, a world in which that happens, and ledgers and watches, which compare what came
of it with what clients were told.

- `core`: the bare core of one set; `faults` and `damage` carry out what its `plan` says, `clients` publish and consume
- `machines`: what brokers that ship run on; `streams` carries their bytes, `loop` is asyncio for one process
- `brokers`: clusters of these, with clients that speak AMQP: `amqp_client` is what all of them are (a new kind of
  client derives from it, as those in `brokers.clients`)
- `sets` and `groups`: the same with many sets, and with a group
- here: `virtual_time`, `trace`, `violations`; `custody` sees who received and who synced what, `operator` is who helps
  where a broker may not; `runs` draws and runs clusters of each kind, `shrink` finds the faults that matter, `planted`
  serves tests that take a safeguard out of the product and expect a checker to see it
"""
