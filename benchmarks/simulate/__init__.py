"""Published figures and ours, each table by a command: ``python -m benchmarks.simulate.tiresias`` and so on.

What needs a published trace reads it from the folder that ``SHAREDKERNEL_TRACES`` names, and says so where there is
none:

- ``tiresias/60_job.csv``, ``tiresias/yarn-gput1000.csv``: github.com/SymbioticLab/Tiresias, ``simulator/``
- ``muri/cluster_trace.csv``: github.com/Rivendile/Muri
- ``gavel/oracle_throughputs.json``: github.com/stanford-futuredata/gavel (``simulation_throughputs.json``)
- ``notebookos/sensei_june_60sec.csv``: github.com/ds2-lab/NotebookOS-Dashboard,
  ``driver-backend/scripts/tiresias_generator/``
"""
