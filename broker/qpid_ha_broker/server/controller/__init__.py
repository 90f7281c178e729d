"""The controller of the cluster, where `default` is led, and its clients at the other brokers."""
