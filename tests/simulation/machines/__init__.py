"""What brokers that ship run on: processes with an event loop, sockets, disks, clocks, and a coordinator."""
