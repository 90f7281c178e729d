"""Random requests to the HTTP port of a broker that runs, from a seed, and what they have come to."""
