"""The layout of the package: where modules may be, what they may import, and how large they may be.

Some rules have a list of today's exceptions. A list may only shrink: a new exception fails, and so does one that is no
longer needed, until its line is deleted.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = "sharedkernel"
ROOT = Path(__file__).parents[1] / PACKAGE

#: rooms (folders and modules of the package), the highest first; a room may import its own layer and those below
LAYERS: tuple[frozenset[str], ...] = (
    # what people and other programs start
    frozenset({"__init__", "__main__", "cli", "local_stack", "services", "gateway", "executor", "relay"})
    | {"serverextension", "demo", "selftest", "cluster"},
    # what runs in a notebook or serves a user's files, and the simulator
    frozenset({"session", "widgets", "shelf", "simulator", "files"}),
    # the core
    frozenset({"scheduling", "device_memory"}),
    # what several processes share: messages, sockets, Jupyter's wire, the status document; and who uses a gateway
    frozenset({"protocol", "client", "ipc", "jupyter", "status"}),
    # the system, and words that all use
    frozenset({"system", "errors", "quota_check", "shortage", "units", "paths", "distribution", "_version"}),
)

#: rooms of one process each; what two of them share is in a layer below
PROCESSES = frozenset({"gateway", "executor"})

#: processes whose folders are in layers, too
LAYERED = ("client", "executor", "gateway", "scheduling", "session", "device_memory")

MAX_MODULES = 14

MAX_LINES = 500

MIN_LINES = 30
#: modules with fewer lines, besides ``__init__`` and ``__main__``
TINY_MODULES = frozenset({"_version"})

MAX_PARAMETERS = 8
#: classes whose constructors take more
WIDE_CONSTRUCTORS = frozenset({"executor.control.router.MessageRouter"})

MAX_METHODS = 12
#: classes with more public methods, properties apart
LARGE_CLASSES = frozenset(
    {
        "cli.top.screen.TopScreen",
        "device_memory.arena.Arena",
        "device_memory.driver.MemoryDriver",
        "device_memory.cuda_driver.CudaDriver",
        "device_memory.lane_memory.LaneMemory",
        "device_memory.store.LaneStore",
        "executor.dispatch.controller.SessionController",
        "gateway.kernels.kernel.SessionKernel",
        "gateway.kernels.manager.SessionKernels",
        "ipc.executor_client.ExecutorClient",
        "scheduling.memory.admission.Admission",
        "scheduling.memory.demand.MemoryDemand",
        "scheduling.memory.lanes.LanePlanner",
        "session.memory.meters.Meter",
    }
)

#: where the handle on a session's process is, its class, and those that it extends
HANDLE, HANDLE_CLASSES = "executor.processes.process", {"SessionHandle", "PersistedSession"}
#: the handle's fields that more than one other module writes
SHARED_FIELDS = frozenset(
    {
        "assigned",
        "data_bytes",
        "growth",
        "limits",
        "memory",
        "promised_bytes",
        "sent_allowance",
        "started",
    }
)


@cache
def modules() -> dict[str, Path]:
    """Return the paths of all modules by name, such as ``gateway.http.tls``; a package has its folder's name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return found


@cache
def tree(name: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(modules()[name].read_bytes())


@cache
def imports(name: str) -> frozenset[str]:
    """Return the modules of this package that a module imports.

    Imports in functions and those for type checkers count as well: both are arrows between modules, hidden or not.
    """
    found: set[str] = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} has a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(filter(None, map(_module, found))) - {name}


def _module(imported: str) -> str | None:
    """Return the module that is meant by what is imported, which may be a name in it."""
    room, _, name = imported.partition(".")
    if room != PACKAGE:
        return None
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name or "__init__"


def _folder(name: str) -> str:
    """Return the folder of a module in its process's."""
    return name.split(".")[1]


def room(name: str) -> str:
    """Return the room of a module."""
    return name.partition(".")[0]


def layer(name: str) -> int:
    """Return the layer of a room, 0 for the highest."""
    return next(number for number, rooms in enumerate(LAYERS) if name in rooms)


@cache
def arrows() -> frozenset[tuple[str, str]]:
    """Return which room imports which other one."""
    pairs = {(room(name), room(target)) for name in modules() for target in imports(name)}
    return frozenset((source, target) for source, target in pairs if source != target)


def check(found: set[str], rule: str, exceptions: frozenset[str] = frozenset()) -> None:
    """Fail if something breaks *rule* that is no exception, or if an exception keeps it."""
    assert not found - exceptions, f"{rule}: {sorted(found - exceptions)}"
    assert not exceptions - found, f"no longer an exception, delete it from the list: {sorted(exceptions - found)}"


def test_every_room_has_a_layer() -> None:
    """A new room is given one in `LAYERS`."""
    assert sorted({room(name) for name in modules()} - frozenset().union(*LAYERS)) == []


def test_imports_point_downward() -> None:
    """No room imports one of a higher layer."""
    upward = {arrow for arrow in arrows() if layer(arrow[1]) < layer(arrow[0])}
    check({f"{source} -> {target}" for source, target in upward}, "imports of a higher layer")


def test_rooms_do_not_import_each_other() -> None:
    """What two rooms share is below both."""
    mutual = {(first, second) for first, second in arrows() if first < second and (second, first) in arrows()}
    check({f"{first} <-> {second}" for first, second in mutual}, "rooms that import each other")


def test_processes_do_not_import_each_other() -> None:
    """They meet in messages, not in code."""
    assert sorted(arrow for arrow in arrows() if set(arrow) <= PROCESSES) == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Not even in functions, or for type checkers; the error names a circle."""
    TopologicalSorter({name: imports(name) for name in modules()}).prepare()


def test_folders_of_a_process_do_not_import_each_other_in_a_circle() -> None:
    """As the processes themselves, their rooms are in layers; a module beside the rooms is one of its own."""
    for process in LAYERED:
        graph: dict[str, set[str]] = {}
        for name in modules():
            if name.startswith(f"{process}."):
                targets = {target for target in imports(name) if target.startswith(f"{process}.")}
                graph.setdefault(_folder(name), set()).update(map(_folder, targets))
        TopologicalSorter({source: targets - {source} for source, targets in graph.items()}).prepare()


def test_folders_are_small() -> None:
    """A newcomer looks through one at a glance."""
    sizes = Counter(
        str(path.parent.relative_to(ROOT))
        for path in modules().values()
        if path.name not in ("__init__.py", "__main__.py")
    )
    found = {folder for folder, size in sizes.items() if size > MAX_MODULES and folder != "."}
    check(found, f"folders with more than {MAX_MODULES} modules")


def test_modules_are_short() -> None:
    """One concept each."""
    found = {name for name, path in modules().items() if len(path.read_text().splitlines()) > MAX_LINES}
    check(found, f"modules with more than {MAX_LINES} lines")


def test_modules_are_no_slivers() -> None:
    """A few lines belong to the module that uses them."""
    found = {
        name
        for name, path in modules().items()
        if not path.stem.startswith("__") and len(path.read_text().splitlines()) < MIN_LINES
    }
    check(found, f"modules with fewer than {MIN_LINES} lines", TINY_MODULES)


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield all classes, with their names after their modules'."""
    for name in modules():
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.ClassDef):
                yield f"{name}.{node.name}", node


def test_constructors_take_few_parameters() -> None:
    """A class that needs more collaborators has more than one matter."""
    found = set()
    for name, node in classes():
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                given = method.args.posonlyargs + method.args.args + method.args.kwonlyargs
                found |= {name} if len(given) - 1 > MAX_PARAMETERS else set()
    check(found, f"constructors with more than {MAX_PARAMETERS} parameters", WIDE_CONSTRUCTORS)


def test_classes_have_few_public_methods() -> None:
    """Properties apart."""
    found = set()
    for name, node in classes():
        methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
        public = [
            each
            for each in methods
            if not each.name.startswith("_") and not any("property" in ast.unparse(by) for by in each.decorator_list)
        ]
        found |= {name} if len(public) > MAX_METHODS else set()
    check(found, f"classes with more than {MAX_METHODS} public methods", LARGE_CLASSES)


def test_a_field_of_the_handle_is_written_by_one_module() -> None:
    """Besides its own; what is written by several is nobody's."""
    fields = {
        field.target.id
        for name, node in classes()
        if node.name in HANDLE_CLASSES and name.startswith(HANDLE)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    writers: dict[str, set[str]] = {field: set() for field in fields}
    for name in modules():
        if name.startswith("executor.") and name != HANDLE:
            for node in ast.walk(tree(name)):
                is_written = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                if is_written and node.attr in fields and ast.unparse(node.value) in ("process", "session", "handle"):
                    writers[node.attr].add(name)
    found = {field for field, names in writers.items() if len(names) > 1}
    check(found, "fields of the handle that several modules write", SHARED_FIELDS)


def test_public_classes_have_unique_names() -> None:
    """One name for one thing in the whole package."""
    names = Counter(
        node.name
        for name in modules()
        for node in tree(name).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    check({name for name, number in names.items() if number > 1}, "class names used twice")


def test_docstrings_begin_with_a_noun_or_an_imperative() -> None:
    """Not with a clause, such as "What it has" or "How it ends"; "Whether" begins those of yes and no."""
    begins = re.compile(r"(If|How|That|What|When|Where|Which|Who|Whose)\b")
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = {
        f"{name}:{getattr(node, 'lineno', 1)}"
        for name in modules()
        for node in ast.walk(tree(name))
        if isinstance(node, documented) and begins.match(ast.get_docstring(node) or "")
    }
    check(found, "docstrings that begin with a clause")
