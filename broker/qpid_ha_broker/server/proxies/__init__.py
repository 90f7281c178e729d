"""Links relayed to other brokers of the cluster, and to brokers outside of it."""
