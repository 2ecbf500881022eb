# SPDX-License-Identifier: Apache-2.0
"""Boots the guest image under plain QEMU (software emulation) and asks it questions: shared by the image tests."""
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SECRET = "0123456789abcdef" * 4
LIMA_ENV = {
    "LIMA_CIDATA_IID": "iid-1789000000",
    "LIMA_CIDATA_NAME": "agent-lane-test0001-shape001",
    "LIMA_CIDATA_USER": "lane",
    "LIMA_CIDATA_UID": "1000",
    "LIMA_CIDATA_HOME": "/home/lane",
    "LIMA_CIDATA_SLIRP_DNS": "192.168.5.3",
    "LIMA_CIDATA_SLIRP_GATEWAY": "192.168.5.2",
    "LIMA_CIDATA_SLIRP_IP_ADDRESS": "192.168.5.15",
}


# The runner's deadline ends a test by SIGTERM: its `finally` blocks must still put the VMs away.
signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by the runner's deadline"))


class Report:
    """Counts checks; a check that raises or returns false fails, and the run goes on."""

    def __init__(self, name):
        self.name, self.passed, self.failed, self.skipped = name, 0, 0, 0

    def check(self, what, ok, detail=""):
        if ok:
            self.passed += 1
        else:
            self.failed += 1
        print("%s %s%s" % ("ok  " if ok else "FAIL", what, "" if ok else ": %s" % str(detail)[:600]), flush=True)
        return ok

    def equal(self, what, got, wanted):
        return self.check(what, got == wanted, "%r instead of %r" % (got, wanted))

    def close(self):
        print("%s: %d passed, %d failed, %d skipped" % (self.name, self.passed, self.failed, self.skipped))
        return 1 if self.failed or not self.passed else 0


def run(*argv, timeout=60, **more):
    return subprocess.run(argv, timeout=timeout, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more).stdout


def load_manifest(image):
    with open(os.path.join(image, "manifest.json")) as file:
        return json.load(file)


def make_key(directory):
    key = os.path.join(directory, "key")
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lima", "-f", key)
    return key


def make_cidata(path, public_key, label="cidata", env=LIMA_ENV, secret=SECRET, extra=""):
    """The files of Lima's cidata volume that the image reads, written the way Lima writes them."""
    with tempfile.TemporaryDirectory() as tree:
        os.mkdir(tree + "/provision.data")
        files = {
            "lima.env": "".join("%s=%s\n" % pair for pair in env.items()) + extra,
            "meta-data": "instance-id: %s\n" % env["LIMA_CIDATA_IID"],
            "user-data": '#cloud-config\nusers:\n  - name: "lane"\n    ssh-authorized-keys:\n      - "%s"\n' % public_key.strip(),
        }
        if secret is not None:
            files["provision.data/00000000"] = secret
        for name, text in files.items():
            with open(os.path.join(tree, name), "w") as file:
                file.write(text)
        run("genisoimage", "-quiet", "-R", "-V", label, "-o", path, tree)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Guest:
    """One QEMU process with its console in a file. Leaves nothing behind when closed."""

    def __init__(self, directory, kernel, initrd, cmdline, arguments, port=None, arch="x86_64"):
        self.console_path = os.path.join(directory, "console-%d.log" % time.monotonic_ns())
        self.port, self.started, self.key = port, time.monotonic(), None
        open(self.console_path, "wb").close()
        # setpriv: QEMU must not outlive a test that is killed.
        machine = "q35,vmport=off,accel=tcg" if arch == "x86_64" else "virt,accel=tcg"
        argv = ["setpriv", "--pdeathsig", "KILL", "qemu-system-" + arch, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                "-machine", machine, "-cpu", "max" if arch == "x86_64" else "cortex-a72", "-smp", "2", "-m", "1024",
                "-kernel", kernel, "-initrd", initrd, "-append", cmdline]
        self.process = subprocess.Popen(
            argv + [a.replace("CONSOLE", self.console_path) for a in arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)

    def console(self):
        with open(self.console_path, "rb") as file:
            return file.read().decode("utf-8", "replace").replace("\r", "")

    def seconds(self):
        return time.monotonic() - self.started

    def wait_for(self, text, seconds):
        """True as soon as the console shows `text`; false after the deadline or when QEMU has ended without it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            if text in self.console():
                return True
            if ended:
                return False
            time.sleep(0.05)
        return False

    def banner(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.5) as link:
                # Long enough for a busy machine: giving up early only makes sshd start over.
                link.settimeout(5)
                line = link.recv(64)
                if line.startswith(b"SSH-"):
                    return line
            time.sleep(0.05)
        return b""

    def ssh(self, command, user="lane", timeout=60):
        done = subprocess.run(
            ["ssh", "-F", "/dev/null", "-i", self.key, "-p", str(self.port), "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes",
             "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
             "-o", "ConnectTimeout=20", user + "@127.0.0.1", command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout)
        return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


@contextlib.contextmanager
def scratch(where=None):
    directory = tempfile.mkdtemp(prefix="agent-lane-image-", dir=where)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
