"""A real Corosync and Pacemaker cluster for tests: `python -m lab` by hand, `pytest tests/lab` for the scenarios."""
