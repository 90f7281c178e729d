"""What `./dev demo` shows: a cluster on this machine, its clients with their books, and a primary that is killed.

Not part of what is installed. Tests, the lab and the benchmark use its cluster and its clients.
"""
