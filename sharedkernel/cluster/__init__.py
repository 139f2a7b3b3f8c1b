"""Several hosts on a Ray cluster: Ray decides which machines take part, and starts ``sharedkernel host`` there.

Nothing on a cell's path and no process that holds a session is Ray's, so all of Ray may end and nobody loses anything.
The only modules that import Ray are `directory.py` (one actor: who takes part; and how commands reach it), and
`agent.py` (one actor on each host: it sees to it that the host's services run). `launch.py` starts a host's services
outside Ray's processes, `settings.py` has what all hosts are started with, and which clusters are refused.
`commands.py` and `host_commands.py` are the command ``sharedkernel cluster``.
"""
