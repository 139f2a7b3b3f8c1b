"""A session's lane on a GPU: taken and handed over at boundaries."""
