"""Sessions from their start to their end, over a restart of the executor, too."""
