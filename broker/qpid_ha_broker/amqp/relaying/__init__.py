"""The way to the broker that leads a resource set: its connections, and what is asked there for clients."""
