"""The asyncio driver: listeners, timers, control socket, main."""
