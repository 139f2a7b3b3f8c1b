"""The processes beside an executor: sessions and their warm parents."""
