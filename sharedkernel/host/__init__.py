"""``sharedkernel host``: one command that keeps all services of one machine running.

`app.py` is the command. `supervisor.py` starts the services, adopts those that run, and starts again what ends;
`running.py` finds what runs.
"""
