"""The resource sets that this broker hosts: members, roles, moves, and the queues placed in them."""
