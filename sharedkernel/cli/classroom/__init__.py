"""`sharedkernel class`: a class in one command, from its roster to its end."""
