"""What an operator has set up in a cluster, as one file, and how a cluster comes to be as the file says."""
