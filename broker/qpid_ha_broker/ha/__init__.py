"""Hot standby: who is primary, who holds what, and what may be confirmed. Pure."""
