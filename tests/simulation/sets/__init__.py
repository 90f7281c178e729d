"""`sets`: brokers that ship with many sets, whose controller moves, makes up for, and spreads them."""
