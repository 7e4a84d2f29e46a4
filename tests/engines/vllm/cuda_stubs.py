"""Stands in for the CUDA libraries that torch's wheel is linked with, on machines without a GPU.

The wheel that plain package indexes have needs fifteen CUDA libraries to be loaded at all, gigabytes
that nothing here would call. What torch wants of them is read from its own libraries; each gets one
of the same name whose every function returns 100, "no device"."""

from __future__ import annotations

import collections
import pathlib
import re
import subprocess
import tempfile

OF_THE_SYSTEM = re.compile(r"(ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp|util)\.so)")
OF_CUDA = re.compile(
    r"(cu[A-Z]|cuda|cublas|cudnn|cufft|cusparse|curand|cusolver|nccl|nvrtc|nvshmem|cufile|cuFile"
    r"|cupti|nvJitLink|__cuda|nvtx)"
)


def _readelf(*arguments: str) -> str:
    return subprocess.run(
        ["readelf", "-W", *arguments], capture_output=True, text=True, check=True
    ).stdout


def wanted(folder: pathlib.Path) -> tuple[set[str], dict[str, set[str]]]:
    """The libraries that torch needs and has not, and the functions it wants by their version."""
    libraries = sorted(folder.glob("*.so*"))
    own = {library.name for library in libraries}
    needed: set[str] = set()
    undefined: dict[str, str] = {}
    defined: set[str] = set()
    for library in libraries:
        names = re.findall(r"NEEDED.*\[(.*?)\]", _readelf("-d", str(library)))
        needed.update(name for name in names if name not in own and not OF_THE_SYSTEM.match(name))
        for line in _readelf("--dyn-syms", str(library)).splitlines():
            fields = line.split()
            if len(fields) < 8:
                continue
            name, _, version = fields[7].partition("@")
            if fields[6] != "UND":
                defined.add(name)
            elif fields[4] != "WEAK":
                undefined[name] = version.strip("@").split(" ")[0]
    by_version: dict[str, set[str]] = collections.defaultdict(set)
    for name, version in undefined.items():
        if name not in defined and OF_CUDA.match(name):
            by_version[version].add(name)
    return needed, by_version


def _versions_of(library: str, versions: set[str]) -> list[str]:
    def is_of(version: str) -> bool:
        if version == "NVSHMEM":
            return library.startswith("libnvshmem")
        return bool(version) and library.startswith(version.split(".so")[0] + ".so")

    return sorted(version for version in versions if is_of(version))


def install(site_packages: pathlib.Path) -> int:
    """Puts a library beside torch's for each that it needs. Returns how many."""
    folder = site_packages / "torch" / "lib"
    needed, by_version = wanted(folder)
    with tempfile.TemporaryDirectory() as scratch:
        source, script = pathlib.Path(scratch) / "stub.c", pathlib.Path(scratch) / "versions"
        for library in sorted(needed):
            versions = _versions_of(library, set(by_version))
            names = {version: sorted(by_version[version]) for version in versions}
            # Those without a version are all the runtime's.
            plain = sorted(by_version[""]) if library.startswith("libcudart") else []
            functions = [name for version in versions for name in names[version]] + plain
            mark = re.sub(r"\W", "_", library)
            lines = [f"int {name}(void) {{ return 100; }}" for name in functions]
            source.write_text("\n".join([*lines, f"int stub_{mark};\n"]))
            command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}"]
            if versions:
                nodes = [f"{v} {{ global: {' '.join(n + ';' for n in names[v])} }};" for v in versions]
                script.write_text("\n".join(nodes))
                command.append(f"-Wl,--version-script={script}")
            subprocess.run([*command, "-o", str(folder / library), str(source)], check=True)
    return len(needed)
