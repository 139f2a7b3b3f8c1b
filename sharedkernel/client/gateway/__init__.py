"""The user's side of a gateway: which one, with which token, and requests to it. No torch."""
