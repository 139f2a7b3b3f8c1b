"""The self-test: try on a GPU, in processes of their own, what sessions are going to do there.

An executor on CUDA runs it at its start. What fails is switched off for this run of the executor: each step is needed
for one of the modes in `device_memory/mode.py`, and the best mode is used of which, and of all plainer ones, no step
failed. Plain mode is used whatever fails.

====================  ================================================================================================
`steps.py`            the list of steps, their results, what follows from them, and the table
`runner.py`           the executor's side: starts the process of the self-test, reads its results, and keeps those in a
                      file
`__main__.py`         that process: it imports torch, and forks a process for each step
`plain_steps.py`      the steps themselves, by the mode that needs them
`memory_steps.py`
`lane_process.py`     lane memory in one process, with the executor's store beside it
`tenants.py`          several processes in one lane, and the store that serves them
====================  ================================================================================================

A step has :data:`~sharedkernel.selftest.steps.STEP_SECONDS`, all of them together
:data:`~sharedkernel.selftest.steps.TOTAL_SECONDS` from when torch is loaded, which may itself take
:data:`~sharedkernel.selftest.steps.LOAD_SECONDS`. A step that crashes, hangs or is killed has failed; one without a
result when the self-test ends has not run. Neither is relied on. The executor itself imports no torch and makes no
context for it.
"""
