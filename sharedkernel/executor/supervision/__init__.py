"""The processes beside an executor: sessions, their warm parents, and the keeper."""
