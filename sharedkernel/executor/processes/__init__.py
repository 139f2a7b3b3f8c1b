"""The process of a session: its record, its connection, and what of its reports counts."""
