"""What is wrong with a cluster, by what its brokers, its coordinator and a machine tell; and who may lead it."""
