"""Which tests run, in which order and for how long: the gate, what a change reaches, a share of the long ones."""
