"""The fault campaign: notebooks train while processes around them are killed, stopped and starved at random.

Faults are of three kinds, and happen to gateway, executor, warm parent, sessions, relays and users' Jupyter
servers (whose kernels then belong to nobody):

- kills, with SIGKILL or by a clean stop; services are started again as an init system would;
- stops (SIGSTOP), for up to 20 seconds and sometimes a minute;
- exhaustion, for up to ten seconds: a process can open no more files, or start no more processes and threads, or there
  is no room left in the runtime directory.

Some last while others happen. Afterwards nothing may be lost, wrong or left over:

- no session that was not itself killed has lost a tensor, and no step's loss differs from an undisturbed run's;
- every printed line was heard exactly once, unless session or relay was killed;
- no service has ended unless it was killed;
- no process, socket, memory file or descriptor is left.

Run as ``python -m tests.faults.campaign --kills 500``; it prints its seed, then a table of all faults, and one JSON
document at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tests.faults.judge import as_table, is_clean, leftovers, make_report
from tests.faults.random_faults import FAULTS, TARGETS, Campaign
from tests.faults.stack import FaultStack

#: characters that are shown of a line of a log
_LINE = 250


def run_campaign(
    *,
    number: int,
    seed: int,
    notebooks: int,
    targets: Mapping[str, int] = MappingProxyType(TARGETS),
    faults: Mapping[str, int] = MappingProxyType(FAULTS),
    device: str = "host",
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run a campaign on a stack of its own, and return its report with what was left over."""
    small_disk = "exhaustion" in faults and os.getuid() == 0
    stack = FaultStack(users=["ada"], device=device, small_disk=small_disk)
    started = time.monotonic()
    private = {"JUPYTER_PATH": str(stack.kernels_directory.parent)} | {
        f"JUPYTER_{name}_DIR": str(stack.directory / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")
    }
    before = {name: os.environ.get(name) for name in private}
    os.environ.update(private)
    try:
        stack.start()
        campaign = Campaign(stack, seed=seed, notebooks=notebooks, targets=targets, faults=faults)
        campaign.run(number, say=say)
        report = make_report(campaign.workers, campaign.faults, campaign.grown, campaign.ended)
        if not is_clean(report | {"left": {}}):
            _say_logs(stack, say)
            campaign.say_stories(say)
    except BaseException:
        _say_logs(stack, say)
        raise
    finally:
        stack.stop()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
    report["failed_starts"] = campaign.num_failed_starts
    return {"seed": seed, **report, "left": leftovers(stack), "wall_seconds": round(time.monotonic() - started, 1)}


def _say_logs(stack: FaultStack, say: Callable[[str], None]) -> None:
    for service in (stack.gateway, stack.executor):
        lines = service.log_path.read_text().splitlines()
        say("\n".join([f"--- {service.log_path.name}", *(line[:_LINE] for line in lines)]))


def main() -> None:
    """Run a campaign from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=500, help="how many faults, of any kind")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--notebooks", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS), help="nothing else has faults")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), help="no other kinds of faults")
    parser.add_argument("--device", default="host", help="such as cuda:0")
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr, flush=True)  # noqa: T201
    report = run_campaign(
        number=options.kills,
        seed=options.seed,
        notebooks=options.notebooks,
        targets={name: TARGETS[name] if len(options.only) == len(TARGETS) else 1 for name in options.only},
        faults={name: FAULTS[name] for name in options.faults},
        device=options.device,
        say=lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201
    )
    print(as_table(report["faults"]), file=sys.stderr, flush=True)  # noqa: T201
    print(json.dumps(report, indent=2))  # noqa: T201
    sys.exit(not is_clean(report))


if __name__ == "__main__":
    main()
