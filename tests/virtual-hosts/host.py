"""A virtual host: a QEMU with the shared device, and a shell in it that takes commands."""

import dataclasses
import itertools
import os
import pathlib
import re
import select
import socket
import subprocess
import time

from equipment import Equipment

OWN_MEMORY_MIB = 320
DRIVE_MIB = 192
# Both are slower than any run needs, on a machine that does other things besides.
BOOT_LIMIT_S = 120
COMMAND_LIMIT_S = 60

# How often a job is asked whether it has ended.
POLL_S = 0.2


class HostLost(Exception):
    """A virtual host ended, or does not answer."""


class CommandFailed(Exception):
    """A command ended otherwise than it was expected to."""


@dataclasses.dataclass
class Output:
    """What a command said, and its status."""

    command: str
    status: int
    text: str

    def expect(self, status: int = 0) -> str:
        """The text, when the status is as expected."""
        if self.status != status:
            said = self.text.strip()[-2000:]
            raise CommandFailed(f"`{self.command}` ended with status {self.status}: {said}")
        return self.text

    def refused(self, says: str) -> str:
        """The last line, when the command failed and said `says`."""
        if self.status == 0 or says not in self.text:
            said = self.text.strip()[-2000:]
            raise CommandFailed(
                f"`{self.command}` was not refused with \"{says}\" but ended with status "
                f"{self.status}: {said}"
            )
        return self.text.strip().splitlines()[-1]


@dataclasses.dataclass
class Pool:
    """The memory that the hosts share: a file without a name, gone with the last who has it."""

    descriptor: int
    mib: int

    @classmethod
    def create(cls, mib: int) -> "Pool":
        """Memory of `mib` MiB, all zero."""
        descriptor = os.memfd_create("rackline-virtual-hosts")
        os.ftruncate(descriptor, mib << 20)
        return cls(descriptor, mib)

    def close(self) -> None:
        """Gives it up."""
        os.close(self.descriptor)

    def path(self) -> str:
        """A path under which other processes of this user can open it."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"


class VirtualHost:
    """One virtual host. `start` it, wait `until_ready`, then `run` commands."""

    def __init__(
        self,
        name: str,
        mode: str,
        equipment: Equipment,
        initramfs: pathlib.Path,
        pool: Pool,
        logs: pathlib.Path,
        sockets: pathlib.Path,
    ):
        self.name = name
        self.mode = mode
        self.equipment = equipment
        self.initramfs = initramfs
        self.pool = pool
        self.drive = sockets / f"{name}.drive"
        self.console = logs / f"{name}.console"
        self.log = (logs / f"{name}.log").open("a")
        self.socket_path = sockets / name
        self.process: subprocess.Popen | None = None
        self.connection: socket.socket | None = None
        self.received = b""
        self.jobs = itertools.count()

    def make_drive(self) -> None:
        """Makes the NVMe drive, which outlives each boot, with an empty file system."""
        with self.drive.open("wb") as drive:
            drive.truncate(DRIVE_MIB << 20)
        made = ["mkfs.ext4", "-q", "-F", "-E", "nodiscard", str(self.drive)]
        subprocess.run(made, check=True, stdin=subprocess.DEVNULL)

    def start(self) -> None:
        """Starts it, the first time or again: it is the same machine with a new boot."""
        self.socket_path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.socket_path))
        listener.listen(1)
        listener.settimeout(BOOT_LIMIT_S)
        self.process = subprocess.Popen(
            # Ends with this program, also when that is killed.
            ["setpriv", "--pdeathsig", "KILL", *self._qemu()],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        try:
            self.connection, _ = listener.accept()
        except TimeoutError as error:
            raise HostLost(f"host {self.name} did not start: see {self.log.name}") from error
        finally:
            listener.close()
        self.received = b""

    def _qemu(self) -> list[str]:
        mib = self.pool.mib
        pool = f"memory-backend-file,id=pool,share=on,mem-path={self.pool.path()},size={mib}M"
        words = [
            "console=ttyS0 quiet panic=-1 nokaslr mitigations=off tsc=reliable",
            f"dax_mode={self.mode} host_name=host-{self.name}",
            # The machine's, the same after a new boot.
            f"machine_id={self.name.encode().hex():0>32}",
        ]
        if self.mode == "hmem":
            # The memory is set aside for devdax by the kernel's command line. It is coherent, and
            # atomic operations between the hosts work.
            memory = [
                "-machine", f"q35,max-ram-below-4g={OWN_MEMORY_MIB}M",
                "-m", f"{OWN_MEMORY_MIB + mib}M",
                "-object", f"memory-backend-ram,id=own,size={OWN_MEMORY_MIB}M",
                "-object", pool,
                "-numa", "node,memdev=own,cpus=0-1",
                "-numa", "node,memdev=pool",
            ]  # fmt: skip
            words.append(f"memmap={mib}M%4G+0xefffffff")
        else:
            # An emulated Type-3 device: each access is a function call in its QEMU, so that
            # operations of the two hosts are not atomic to each other.
            window = "cxl-fmw.0.targets.0=cxl.0,cxl-fmw.0.size=4G"
            memory = [
                "-machine", f"q35,cxl=on,{window}",
                "-m", f"{OWN_MEMORY_MIB}M,maxmem=8G,slots=4",
                "-object", pool,
                "-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.0",
                "-device", "cxl-rp,port=0,bus=cxl.0,id=rp0,chassis=0,slot=2",
                "-device", "cxl-type3,bus=rp0,volatile-memdev=pool,id=mem0,sn=1",
            ]  # fmt: skip
        return [
            self.equipment.qemu,
            # Without KVM, which a virtual machine that runs CI has not. One CPU would be emulated
            # without the meaning of locked instructions.
            "-accel", "tcg,thread=multi", "-cpu", "max,-hypervisor", "-smp", "2",
            "-nodefaults", "-display", "none", "-no-reboot",
            *memory,
            "-drive", f"file={self.drive},if=none,id=drive,format=raw,cache=writeback",
            "-device", f"nvme,drive=drive,serial=rackline-{self.name},bus=pcie.0",
            "-serial", f"file:{self.console}",
            "-chardev", f"socket,id=commands,path={self.socket_path}",
            "-serial", "chardev:commands",
            "-kernel", str(self.equipment.kernel),
            "-initrd", str(self.initramfs),
            "-append", " ".join(words),
        ]  # fmt: skip

    def until_ready(self) -> None:
        """Waits until it has booted and has its device."""
        self._read_until(rb"@ready\r?\n", BOOT_LIMIT_S)

    def run(self, command: str, limit_s: float = COMMAND_LIMIT_S) -> Output:
        """Runs a shell command and waits for its end. One at a time: see `spawn`."""
        if "\n" in command:
            raise ValueError("a command is one line")
        assert self.connection is not None, "started before"
        started = time.monotonic()
        try:
            self.connection.sendall(command.encode() + b"\n")
        except OSError as error:
            raise HostLost(f"host {self.name} is gone") from error
        try:
            text, status = self._read_until(rb"\n@status (\d+)\r?\n", limit_s)
        except HostLost as error:
            said = self.received.decode(errors="replace").strip()[-2000:]
            raise HostLost(f"{error}: the command was `{command}`, its output {said!r}") from error
        output = Output(command, int(status), text)
        took = time.monotonic() - started
        self.log.write(f"$ {command}\n{text}\n=> {output.status} after {took:.2f} s\n")
        self.log.flush()
        return output

    def spawn(self, command: str) -> "Job":
        """Starts a shell command without waiting for it."""
        job = Job(self, f"/run/job{next(self.jobs)}", command)
        self.run(f"({{ {command}; }} >{job.path} 2>&1; echo $? >{job.path}.status) &").expect()
        return job

    def kill(self) -> None:
        """What a power cut does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        """Ends it and closes its log."""
        self.kill()
        self.log.close()

    def _read_until(self, pattern: bytes, limit_s: float) -> tuple[str, str]:
        """What came before `pattern`, and the pattern's group when it has one."""
        assert self.connection is not None and self.process is not None, "started before"
        deadline = time.monotonic() + limit_s
        while (found := re.search(pattern, self.received)) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise HostLost(f"host {self.name} did not answer within {limit_s:.0f} s")
            if not select.select([self.connection], [], [], left_s)[0]:
                continue
            data = self.connection.recv(1 << 16)
            if not data:
                raise HostLost(f"host {self.name} ended: see {self.console}")
            self.received += data
        before = self.received[: found.start()].decode(errors="replace")
        self.received = self.received[found.end() :]
        return before, found[1].decode() if found.re.groups else ""


@dataclasses.dataclass
class Job:
    """A command that runs in the background of a host."""

    host: VirtualHost
    path: str
    command: str

    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self.host.run(f"test -e {self.path}.status").status == 0

    def wait(self, limit_s: float = COMMAND_LIMIT_S) -> Output:
        """Waits for its end."""
        deadline = time.monotonic() + limit_s
        while not self.has_ended():
            if time.monotonic() > deadline:
                said = self.host.run(f"tail -n 20 {self.path}").text.strip()
                raise CommandFailed(f"`{self.command}` did not end in {limit_s:.0f} s: {said}")
            time.sleep(POLL_S)
        text = self.host.run(f"cat {self.path}").expect()
        status = int(self.host.run(f"cat {self.path}.status").expect())
        return Output(self.command, status, text)
