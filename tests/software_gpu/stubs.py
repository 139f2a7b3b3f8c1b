"""Write and compile stubs in the place of NVIDIA's libraries that torch's CUDA build links: cuBLAS, cuDNN, NCCL ...

What torch calls of each is read from its own libraries. Calls of cuBLAS succeed and compute nothing, since they come
from kernels that the software GPU replaces; those of all others return their library's "not supported".
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

#: by the start of a library's soname: what its calls return
_RESULTS = {
    "libcublas": 0,
    "libcublasLt": 0,
    "libcudnn": 3000,
    "libcufft": 16,
    "libcusparse": 10,
    "libcusolver": 9,
    "libcusolverMg": 9,
    "libcurand": 201,
    "libcupti": 35,
    "libnccl": 1,
    "libcusparseLt": 10,
    "libcufile": 5030,
    "libnvshmem_host": 7,
    "libnvrtc": 1,
    "libnvJitLink": 1,
    "libnvToolsExt": 1,
}
#: libraries whose symbols have no version, by how these symbols begin
_UNVERSIONED = {
    "nccl": "libnccl",
    "cusparseLt": "libcusparseLt",
    "cuFile": "libcufile",
    "nvshmem": "libnvshmem_host",
    "curand": "libcurand",
    "cupti": "libcupti",
}
#: calls with a body of their own; their parameters are the longs a, b, c ... j
_BODIES = {
    "cublasCreate_v2": "*(void **)a = &dummy; return 0;",
    "cublasLtCreate": "*(void **)a = &dummy; return 0;",
    "cublasGetStream_v2": "*(void **)b = 0; return 0;",
    "cublasGetMathMode": "*(int *)b = 0; return 0;",
    "cublasGetPointerMode_v2": "*(int *)b = 0; return 0;",
    "cublasGetVersion_v2": "*(int *)b = 130100; return 0;",
    "cublasGetSmCountTarget": "*(int *)b = 0; return 0;",
    "cublasGetEmulationStrategy": "*(int *)b = 0; return 0;",
    # one algorithm without a workspace: 64 bytes of it, its workspace's size, its state
    "cublasLtMatmulAlgoGetHeuristic": (
        "for (int k = 0; k < 64 + 8 + 4; k++) ((char *)i)[k] = 0; *(int *)j = 1; return 0;"
    ),
    "cublasLtMatrixLayoutCreate": "*(void **)a = &dummy; return 0;",
    "cublasLtMatmulDescCreate": "*(void **)a = &dummy; return 0;",
    "cublasLtMatmulPreferenceCreate": "*(void **)a = &dummy; return 0;",
    "cudnnGetVersion": "return 91900;",
    "cudnnGetCudartVersion": "return 13000;",
    "ncclGetVersion": "*(int *)a = 22809; return 0;",
    "cuptiGetResultString": '*(const char **)b = "stub"; return 0;',
} | dict.fromkeys(
    (
        "cublasGetStatusString", "cudnnGetErrorString", "ncclGetErrorString", "ncclGetLastError",
        "cusparseGetErrorString",
    ),
    'return (long)"this library is a stub of the software GPU";',
)  # fmt: skip


def build_stubs(torch_libraries: Path, folder: Path, compiler: str) -> None:
    """Compile a stub of each library that is missing.

    Parameters
    ----------
    torch_libraries
        Folder of torch's own libraries.
    folder
        Where the stubs go.
    compiler
        Of C.
    """
    ours = {path.name for path in torch_libraries.iterdir()} | {path.name for path in folder.iterdir()}
    needed: set[str] = set()
    symbols: set[tuple[str, str]] = set()
    for library in sorted(torch_libraries.glob("*.so*")):
        needed |= set(re.findall(r"\(NEEDED\).*\[(.+)\]", _output("readelf", "-dW", str(library))))
        for name in re.findall(r"U (\S+)", _output("nm", "-D", "--undefined-only", str(library))):
            symbol, _, version = name.partition("@")
            symbols.add((symbol, version))
    for soname in sorted(needed - ours):
        if soname.split(".so")[0] in _RESULTS:
            _compile(soname, sorted(_symbols_of(soname, symbols)), folder, compiler)


def write_missing_runtime_calls(torch_libraries: Path, sources: str, path: Path) -> None:
    """Write C for the calls of CUDA's runtime that this torch refers to and *sources* do not have: "not supported"."""
    wanted: set[str] = set()
    for library in sorted(torch_libraries.glob("*.so*")):
        wanted |= set(re.findall(r"U (cuda\w+)@libcudart", _output("nm", "-D", "--undefined-only", str(library))))
    missing = sorted(name for name in wanted if not re.search(rf"\b{name}\(", sources))
    lines = [
        f'int {name}(void);\n__attribute__((visibility("default"))) int {name}(void) {{ return 801; }}'
        for name in missing
    ]
    path.write_text("\n".join(["/* cudaErrorNotSupported */", *lines, ""]), encoding="ascii")


def _symbols_of(soname: str, symbols: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    stem = soname.split(".so")[0]
    for symbol, version in symbols:
        is_own = version == soname or (version == "NVSHMEM" and stem == "libnvshmem_host")
        is_like_own = not version and any(
            symbol.startswith(prefix) and owner == stem for prefix, owner in _UNVERSIONED.items()
        )
        if is_own or is_like_own:
            yield symbol, version


def _compile(soname: str, symbols: Sequence[tuple[str, str]], folder: Path, compiler: str) -> None:
    result = _RESULTS[soname.split(".so")[0]]
    parameters = ", ".join(f"long {name}" for name in "abcdefghij")
    lines = ["static char dummy[4096] __attribute__((unused));"]
    lines += [f"long {symbol}({parameters}) {{ {_BODIES.get(symbol, f'return {result};')} }}" for symbol, _ in symbols]
    version = next((version for _, version in symbols if version), "")
    source, script = folder / "stub.c", folder / "stub.map"
    source.write_text("\n".join(lines) + "\n", encoding="ascii")
    script.write_text(f"{version} {{ global: *; }};\n", encoding="ascii")
    # without warnings: the names of some calls are those of functions that the compiler knows
    subprocess.run(
        [compiler, "-O1", "-w", "-fPIC", "-shared", str(source), "-o", str(folder / soname), f"-Wl,-soname,{soname}",
         f"-Wl,--version-script={script}"],
        check=True,
    )  # fmt: skip
    source.unlink()
    script.unlink()


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
