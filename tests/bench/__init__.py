"""`./dev bench`: what the broker can do, in figures beside their targets. It measures and never judges a test run."""
