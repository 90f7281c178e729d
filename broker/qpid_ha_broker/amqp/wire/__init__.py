"""What is said on connections: Proton's engine, messages, values, and brokers' requests to each other."""
