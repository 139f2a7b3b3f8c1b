"""The gateway: users, their sessions and the executors behind them, over HTTP. `app.py` starts it."""
