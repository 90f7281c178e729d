"""What clients and operators ask for, in terms of resource sets."""
