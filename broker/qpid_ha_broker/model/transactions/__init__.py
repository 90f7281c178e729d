"""What is done all at once or not at all, and once though it is sent twice."""
