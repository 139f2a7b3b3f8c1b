"""A session's lane on a GPU: `lane_turns.py` takes it and hands it over at boundaries, `client.py` sets that up."""
