"""Finding out, from a machine, what `qpid_ha_broker.diagnosis` judges: it is looked at, and all brokers are asked."""
