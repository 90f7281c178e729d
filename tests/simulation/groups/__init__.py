"""`group`: brokers that ship which are members of one group, and the order that carries their log."""
