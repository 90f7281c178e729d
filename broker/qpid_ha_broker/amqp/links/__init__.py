"""Each kind of link that a client or a broker can attach."""
