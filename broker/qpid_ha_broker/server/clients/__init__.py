"""Clients of this broker: listeners, admission, their protocol, and the hosts that they are told of."""
