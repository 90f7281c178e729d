"""What is wrong with a cluster: facts from wherever they can be had, and what follows from them."""
