"""What monitoring reads of a broker: which figures there are, and their text. Pure."""
