"""The cluster of many resource sets, pure: the map, who decides about it, and where replicas go."""
