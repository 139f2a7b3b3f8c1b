"""Loaded when the Python of a run starts: its packages and the software GPU's libraries.

A copy of this file, called `_software_gpu`, and a file `.pth` that imports it lie in the virtual environment of each
run, beside `_software_gpu.json`. Libraries that are loaded first are taken in the place of NVIDIA's. The run's
directory is known by where this file is, since sessions do not inherit their executor's environment.
"""

import ctypes
import json
import logging
import os
import site
import sys


def _start() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "_software_gpu.json"), encoding="utf-8") as file:
        places = json.load(file)
    os.environ["SOFTWARE_GPU_DIRECTORY"] = places["directory"]
    for packages in places["packages"]:
        site.addsitedir(packages)
    sys.path.append(places["checkout"])
    # it warns, in the first cell of a notebook, that there is no Triton
    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)
    for library in places["libraries"]:
        ctypes.CDLL(library, ctypes.RTLD_GLOBAL)


_start()
