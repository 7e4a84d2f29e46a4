"""What a virtual host is made of: QEMU, a kernel, its modules and a shell.

QEMU is installed by apt when there is none that is new enough, which takes root. The kernel and
the shell are only unpacked, into the cache folder: `$RACKLINE_CACHE`, else `~/.cache/rackline`.
"""

import dataclasses
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

QEMU = "qemu-system-x86_64"
# The first with volatile memory behind an emulated CXL device.
QEMU_VERSION_MIN = (8, 1)

# Tried in this order: small kernels for clouds, recent enough to make regions of volatile memory.
KERNELS = ["linux-image-6.12-cloud-amd64", "linux-image-cloud-amd64"]
MODULES = {
    "hmem": ["dax/device_dax", "dax/hmem/dax_hmem"],
    "cxl": ["cxl/cxl_acpi", "cxl/cxl_pci", "cxl/cxl_mem", "dax/device_dax", "dax/dax_cxl"],
}

DOWNLOAD_LIMIT_S = 300


class Unavailable(Exception):
    """Something that is needed is missing. Says what, and what to do."""


@dataclasses.dataclass
class Equipment:
    """Where everything is."""

    qemu: str
    kernel: pathlib.Path
    shell: pathlib.Path
    modules: pathlib.Path


def find() -> Equipment:
    """Finds what is there already, and gets the rest."""
    folder = _cache_folder()
    with tempfile.TemporaryDirectory(prefix="rackline-apt.") as apt_folder:
        apt = _Apt(pathlib.Path(apt_folder))
        qemu = _qemu(apt)
        # Written last, by a rename: a folder by this name is complete.
        unpacked = folder / "guest"
        if not unpacked.is_dir():
            _unpack(apt, unpacked)
    return Equipment(qemu, unpacked / "vmlinuz", unpacked / "busybox", unpacked / "modules")


def _cache_folder() -> pathlib.Path:
    configured = os.environ.get("RACKLINE_CACHE")
    base = pathlib.Path(configured) if configured else pathlib.Path.home() / ".cache" / "rackline"
    return base / "virtual-hosts"


def _qemu(apt: "_Apt") -> str:
    if (found := _qemu_new_enough()) is not None:
        return found
    if os.geteuid() != 0:
        wanted = ".".join(map(str, QEMU_VERSION_MIN))
        raise Unavailable(f"{QEMU} {wanted} or newer is needed: install it, or run this as root")
    apt.install("qemu-system-x86")
    if (found := _qemu_new_enough()) is None:
        raise Unavailable(f"apt installed a {QEMU} that is too old: install a newer one by hand")
    return found


def _qemu_new_enough() -> str | None:
    path = shutil.which(QEMU)
    if path is None:
        return None
    said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    version = re.search(r"version (\d+)\.(\d+)", said)
    if version is None or tuple(map(int, version.groups())) < QEMU_VERSION_MIN:
        return None
    return path


def _unpack(apt: "_Apt", target: pathlib.Path) -> None:
    """Makes the folder `target` with the kernel, its modules and the shell."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="unpacking.", dir=target.parent) as temporary:
        root = pathlib.Path(temporary) / "root"
        for package in [apt.kernel_package(), "busybox-static"]:
            subprocess.run(["dpkg-deb", "-x", apt.download(package), root], check=True)
        made = pathlib.Path(temporary) / "guest"
        (made / "modules").mkdir(parents=True)
        drivers = _only(root.glob("lib/modules/*/kernel/drivers"))
        for module in {module for modules in MODULES.values() for module in modules}:
            packed = (drivers / f"{module}.ko.xz").read_bytes()
            name = module.rpartition("/")[2]
            (made / "modules" / f"{name}.ko").write_bytes(lzma.decompress(packed))
        shutil.copy(_only(root.glob("boot/vmlinuz-*")), made / "vmlinuz")
        shutil.copy(root / "bin" / "busybox", made / "busybox")
        try:
            made.rename(target)
        except OSError:
            # Another run was faster, and made the same.
            if not target.is_dir():
                raise


def _only(paths) -> pathlib.Path:
    found = list(paths)
    if len(found) != 1:
        raise Unavailable(f"the kernel's package has {len(found)} of what there should be one of")
    return found[0]


class _Apt:
    """apt with the machine's own sources and its backports, in lists of its own: the machine's
    are left as they are. Made ready on first use."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.ready = False

    def install(self, package: str) -> None:
        """Installs `package` on this machine, from the backports where they have it."""
        self._prepare()
        release = f"{self.codename}-backports"
        arguments = ["install", "-y", "--no-install-recommends", "-t", release, package]
        self._run("apt-get", *arguments)

    def kernel_package(self) -> str:
        """The package that the first of `KERNELS` stands for."""
        self._prepare()
        for package in KERNELS:
            try:
                said = self._run("apt-cache", "depends", package)
            except Unavailable:
                continue
            if found := re.search(r"Depends: (linux-image-\d\S+)", said):
                return found[1]
        raise Unavailable(f"apt knows none of {', '.join(KERNELS)}: Debian 12 or newer has them")

    def download(self, package: str) -> pathlib.Path:
        """Downloads `package` without installing it."""
        self._prepare()
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        self._run("apt-get", "download", package, folder=folder)
        return _only(folder.glob("*.deb"))

    def _prepare(self) -> None:
        if self.ready:
            return
        if shutil.which("apt-get") is None:
            raise Unavailable(f"without apt, install {QEMU} by hand; only Debian is known to work")
        release = pathlib.Path("/etc/os-release").read_text()
        named = re.search(r"^VERSION_CODENAME=\"?(\w+)", release, re.MULTILINE)
        if named is None:
            raise Unavailable("/etc/os-release names no release: only Debian is known to work")
        self.codename = named[1]
        for part in ["lists/partial", "archives/partial"]:
            (self.folder / part).mkdir(parents=True)
        said = subprocess.run(
            ["apt-get", "update", "--print-uris"], capture_output=True, text=True
        ).stdout
        sources = set()
        for uri, suite in re.findall(r"^'(\S+?)/dists/(\S+?)/InRelease'", said, re.MULTILINE):
            if suite.startswith(self.codename):
                sources.add((uri, suite))
            if suite == self.codename:
                sources.add((uri, f"{self.codename}-backports"))
        if not sources:
            raise Unavailable(f"apt has no source for {self.codename}: check its configuration")
        keyring = pathlib.Path("/usr/share/keyrings/debian-archive-keyring.gpg")
        signed = f"[signed-by={keyring}] " if keyring.exists() else ""
        lines = [f"deb {signed}{uri} {suite} main\n" for uri, suite in sorted(sources)]
        (self.folder / "sources.list").write_text("".join(lines))
        self._run("apt-get", "update")
        self.ready = True

    def _run(self, *command: str, folder: pathlib.Path | None = None) -> str:
        """Runs an apt command; its output."""
        own = {
            "Dir::Etc::SourceList": self.folder / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": self.folder / "lists",
            "Dir::Cache": self.folder,
            # The lists lie where only this user may look.
            "APT::Sandbox::User": "root",
            "Acquire::Retries": 3,
            "DPkg::Lock::Timeout": DOWNLOAD_LIMIT_S,
        }
        options = [f"-o{name}={value}" for name, value in own.items()]
        try:
            done = subprocess.run(
                [command[0], "-q", *options, *command[1:]],
                cwd=folder or self.folder,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=2 * DOWNLOAD_LIMIT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{' '.join(command)} did not end") from error
        if done.returncode != 0:
            reason = (done.stderr or done.stdout).strip()[-1000:]
            raise Unavailable(f"{' '.join(command)} failed: {reason}")
        return done.stdout
