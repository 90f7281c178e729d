"""The AMQP 1.0 surface on Proton's engine, without sockets."""
