"""Device memory: who is charged what, who may come in, and who makes room.

To make room, `reclaim.py` takes lanes, `offloading.py` chooses idle sessions to offload, and `memory_turns.py` sessions
whose cells are open.
"""
