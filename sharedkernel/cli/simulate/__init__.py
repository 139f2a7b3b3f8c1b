"""`sharedkernel simulate`: the scheduler on traces instead of notebooks."""
