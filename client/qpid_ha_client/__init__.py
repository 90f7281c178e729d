"""A client of brokers that keep sessions: exactly-once over failovers, for applications that use Proton."""
