"""Whole clusters on a virtual clock, with seeded faults, and checkers that know nothing of the workload's plans."""
