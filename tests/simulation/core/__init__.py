"""`one-set`: the bare core in simulated channels, a node for each broker, and somebody who promotes."""
