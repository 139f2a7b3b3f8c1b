"""A session's lane on a GPU: `lane_turns.py` takes it and hands it over, `session_lane.py` sets it up."""
