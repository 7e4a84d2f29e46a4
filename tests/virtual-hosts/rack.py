"""The two virtual hosts of a run, and what its cases found."""

import collections.abc
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

import equipment
import initramfs
from host import CommandFailed, HostLost, Job, Output, Pool, VirtualHost

POOL_MIB = 256
DEVICE = "/dev/dax0.0"
# An emulated host on a busy machine may stand still for seconds, and it is not dead then.
DECLARE_MS = 15_000
MANAGER_PID = "/run/manager.pid"
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


class CaseFailed(Exception):
    """A case found something else than it should."""


@dataclasses.dataclass
class Result:
    """What a case found."""

    case: str
    passed: bool
    figures: dict[str, object]
    fault: str = ""
    took_s: float = 0.0


@dataclasses.dataclass
class Rack:
    """Two hosts, a and b: nodes 0 and 1 of the region."""

    mode: str
    a: VirtualHost
    b: VirtualHost
    # The protocol of the region's locks, for the names of cases that run with each; empty before
    # there is a region.
    locks: str = ""
    results: list[Result] = dataclasses.field(default_factory=list)
    managers: dict[str, Job] = dataclasses.field(default_factory=dict)

    def case(self, function: collections.abc.Callable[["Rack"], dict[str, object]]) -> bool:
        """Runs a case; whether it passed. Its first line of documentation is its name."""
        name = (function.__doc__ or function.__name__).strip().splitlines()[0].rstrip(".")
        name = f"{self.locks}: {name}" if self.locks else name
        started = time.monotonic()
        result = Result(name, False, {})
        try:
            result.figures = function(self)
            result.passed = True
        except (CaseFailed, CommandFailed, HostLost) as error:
            result.fault = str(error)
            # Without a host there is nothing to try the next cases on.
            if isinstance(error, HostLost):
                raise
        finally:
            result.took_s = time.monotonic() - started
            self.results.append(result)
        return result.passed

    def both(self, of_a: str, of_b: str, limit_s: float = 120) -> tuple[Output, Output]:
        """Runs a command on each host at once."""
        jobs = [self.a.spawn(of_a), self.b.spawn(of_b)]
        first, second = (job.wait(limit_s) for job in jobs)
        return first, second

    def start_manager(self, host: VirtualHost, node: int) -> None:
        """Starts a lock manager on a host, or a standby."""
        command = f"rackline lock-manager --region {DEVICE} --declare-ms {DECLARE_MS} --node {node}"
        # The shell ends when it does, with its status.
        of_shell = f"{command} & echo $! >{MANAGER_PID}; wait $!"
        self.managers[host.name] = host.spawn(of_shell)

    def stop_manager(self, host: VirtualHost) -> None:
        """Stops the lock manager of a host in order."""
        host.run(f"kill -TERM $(cat {MANAGER_PID})").expect()
        self.managers.pop(host.name).wait().expect()

    def status(self, host: VirtualHost) -> dict:
        """What `rackline status` says there."""
        said = host.run(f"rackline status --region {DEVICE} --json 2>/dev/null").expect()
        return json.loads(said)


def figures(text: str) -> dict[str, str]:
    """The figures in the output of `dax-suite`."""
    lines = [line for line in text.splitlines() if line.startswith("figures")]
    if len(lines) != 1:
        raise CaseFailed(f"not one line of figures: {text[-2000:]!r}")
    return dict(word.split("=", 1) for word in lines[0].split()[1:])


def build() -> dict[str, bytes]:
    """Builds what runs on the hosts, as `cargo test --workspace` builds it, and returns the files:
    programs without debugging information, and the libraries that they load."""
    programs = ["rackline", "dax-suite"]
    # The programs of a package are built with its tests. A release build would compile everything again.
    tests = ["--test", "demo", "--test", "simulated_locks"]
    subprocess.run(
        ["cargo", "test", "--quiet", "--locked", "--workspace", "--no-run", *tests],
        cwd=REPOSITORY,
        check=True,
    )
    files = {}
    with tempfile.TemporaryDirectory(prefix="stripped.") as folder:
        for name in programs:
            built = target_folder() / "debug" / name
            stripped = pathlib.Path(folder) / name
            subprocess.run(["strip", "--output-file", stripped, built], check=True)
            files[f"/bin/{name}"] = stripped.read_bytes()
            for library in libraries(built):
                files[library] = pathlib.Path(library).read_bytes()
    return files


def libraries(program: pathlib.Path) -> list[str]:
    """The shared libraries that a program loads, and what loads them, by absolute path."""
    said = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", said)


def target_folder() -> pathlib.Path:
    """Where cargo builds."""
    return REPOSITORY / os.environ.get("CARGO_TARGET_DIR", "target")


@contextlib.contextmanager
def bring_up(mode: str, programs: dict[str, bytes], logs: pathlib.Path):
    """Two running hosts with one device. Nothing of them is left on return, however it comes."""
    found = equipment.find()
    modules = [module.rpartition("/")[2] for module in equipment.MODULES[mode]]
    files = {
        "/init": (REPOSITORY / "tests/virtual-hosts/guest/init").read_bytes(),
        "/bin/busybox": found.shell.read_bytes(),
        **{f"/modules/{name}.ko": (found.modules / f"{name}.ko").read_bytes() for name in modules},
        **programs,
    }
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rack.")))
        image = folder / "initramfs"
        image.write_bytes(initramfs.pack(files, {"/bin/sh": "busybox"}))
        pool = Pool.create(POOL_MIB)
        stack.callback(pool.close)
        hosts = []
        for name in ["a", "b"]:
            host = VirtualHost(name, mode, found, image, pool, logs, folder)
            host.make_drive()
            stack.callback(host.close)
            hosts.append(host)
        for host in hosts:
            host.start()
        for host in hosts:
            host.until_ready()
        yield Rack(mode, *hosts)
