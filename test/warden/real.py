#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The built warden under the real limactl and QEMU: real.py WARDEN LIMACTL IMAGE_DIR SCRATCH_DIR. Run as a user that is not root.

IMAGE_DIR is what image/build made. Boots one VM per check; exit status 0 only when every check held."""
import json, os, random, shutil, signal, socket, subprocess, sys, time

warden, limactl, img, home = (os.path.realpath(a) for a in sys.argv[1:5])
qemu = shutil.which("qemu-system-x86_64")
os.makedirs(home, mode=0o700, exist_ok=True)
os.chdir(home)
YAML = """
minimumLimaVersion: 2.2.0
vmType: qemu
arch: x86_64
images:
- location: IMG/DISK
  arch: x86_64
  kernel: {location: IMG/KERNEL, cmdline: "CMDLINE"}
  initrd: {location: IMG/INITRD}
cpus: 1
memory: 1GiB
disk: 10GiB
plain: true
mounts: []
containerd: {system: false, user: false}
portForwards:
- {guestIP: 0.0.0.0, guestIPMustBeZero: false, guestPortRange: [1, 65535], proto: any, ignore: true}
ssh: {localPort: 0, loadDotSSHPubKeys: false, forwardAgent: false, forwardX11: false, forwardX11Trusted: false, overVsock: false}
hostResolver: {enabled: false}
propagateProxyEnv: false
upgradePackages: false
firmware: {legacyBIOS: true}
video: {display: none}
user: {name: lane, uid: 1000, home: /home/lane, comment: "", shell: /bin/bash}
vmOpts: {qemu: {cpuType: {x86_64: max}}}
"""
boot = json.load(open(img + "/manifest.json"))["boot"]["qemu"]
for word, value in (("IMG/", img + "/"), ("DISK", boot["disk"]), ("KERNEL", boot["kernel"]), ("INITRD", boot["initrd"]), ("CMDLINE", boot["cmdline"])):
    YAML = YAML.replace(word, value)
failed = []


def check(what, ok, detail=""):
    print("%s - %s%s" % ("ok" if ok else "NOT OK", what, "" if ok else ": %s" % (detail,)), flush=True)
    if not ok:
        failed.append(what)


def stat_start(pid):
    return int(open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()[19])


def alive(pid):
    try:
        return open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def open_files(pid):
    found = []
    for f in os.listdir("/proc/%d/fd" % pid):
        try:
            found.append(os.readlink("/proc/%d/fd/%s" % (pid, f)))
        except OSError:  # closed since
            pass
    return found


def gone_within(pid, seconds):
    t = time.time()
    while time.time() - t < seconds:
        if not alive(pid):
            return time.time() - t
        time.sleep(0.002)
    return None


class Vm:
    def __init__(self, network, owner=None):
        self.name = "agent-lane-%08x-%08x" % (random.randrange(1 << 32), random.randrange(1 << 32))
        self.dir = home + "/" + self.name
        self.log = home + "/" + self.name + ".warden.log"
        self.owner = owner or subprocess.Popen(["sleep", "300"])
        words = [warden, "--agent-lane-policy", "1", "--qemu", qemu, "--network", network, "--accel", "tcg",
                 "--channel", "shell", "--owner", "%d:%d" % (self.owner.pid, stat_start(self.owner.pid)),
                 "--keeper", "%d:1" % self.owner.pid,  # one that is gone
                 "--log", self.log, "--"]
        self.env = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"], "LIMA_HOME": home,
                    "QEMU_SYSTEM_X86_64": " ".join("'%s'" % w for w in words)}

    def run(self, *args, **more):
        return subprocess.run([limactl, "--tty=false", "--log-level", "error", *args], env=self.env, timeout=60, capture_output=True, **more)

    def __enter__(self):
        r = self.run("create", "--name=" + self.name, "-", input=YAML.encode())
        if r.returncode:
            raise SystemExit("create failed: %s" % r.stderr.decode())
        self.start = subprocess.Popen([limactl, "--tty=false", "start", "--timeout", "5m", self.name], env=self.env, stdin=subprocess.DEVNULL,
                                      stdout=open(self.log + ".start", "w"), stderr=subprocess.STDOUT, start_new_session=True)
        return self

    def banner(self, seconds=90):
        port, end = None, time.time() + seconds
        while time.time() < end:
            try:
                if not port:
                    port = next((s["sshLocalPort"] for l in open(self.dir + "/ha.stdout.log") if (s := json.loads(l)["status"]).get("sshLocalPort")), None)
                with socket.create_connection(("127.0.0.1", port), 0.5) as c:
                    c.settimeout(0.5)
                    if c.recv(64).startswith(b"SSH-"):
                        return True
            except (OSError, ValueError, TypeError):
                pass
            time.sleep(0.05)
            if self.start.poll():
                break
        for f in (self.dir + "/ha.stderr.log", self.log):
            print(open(f).read()[-1500:] if os.path.exists(f) else f + " is not there")
        return False

    def report(self):
        return json.loads(open(self.log).readline())

    def shell(self, command):
        return self.run("shell", "--workdir", "/", self.name, "sh", "-c", command, stdin=subprocess.DEVNULL)

    def qmp(self, command):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(5)
            s.connect(self.dir + "/qmp.sock")
            f = s.makefile("rw")
            f.readline()
            for c in ({"execute": "qmp_capabilities"}, {"execute": "human-monitor-command", "arguments": {"command-line": command}}):
                f.write(json.dumps(c) + "\n")
                f.flush()
                answer = json.loads(f.readline())
            return answer["return"]

    def __exit__(self, *why):
        r = self.run("delete", "-f", self.name)
        check("delete", r.returncode == 0 and not os.path.exists(self.dir), r.stderr)
        self.start.kill()
        self.start.wait()
        if self.owner.poll() is None:
            self.owner.kill()
        self.owner.wait()


LISTEN = socket.create_server(("127.0.0.1", 0))
# Says in either case that it ran: a probe that never came to its connect would prove nothing.
REACH = """timeout 40 python3 -c "
import socket
try: socket.create_connection(('192.168.5.2', %d), 10); print('REACHED')
except OSError as e: print('UNREACHED', e)
" """ % LISTEN.getsockname()[1]


def network_none():
    t = time.time()
    with Vm("none") as vm:
        check("none: boots to the ssh banner", vm.banner(), open(vm.log).read() if os.path.exists(vm.log) else "no log")
        print("   banner after %.1f s" % (time.time() - t))
        report = vm.report()
        check("none: qemu.pid is QEMU's own", int(open(vm.dir + "/qemu.pid").read()) == report["qemu"])
        check("none: QEMU's parent is the warden", int(open("/proc/%d/stat" % report["qemu"]).read().rpartition(")")[2].split()[1]) == report["warden"])
        running = open("/proc/%d/cmdline" % report["qemu"]).read().split("\0")[:-1]
        check("none: the log has the running argv", running == report["argv"])
        info = vm.qmp("info network")
        check("none: QMP shows restrict=on", "restrict=on" in info, info)
        check("none: seccomp is on in QEMU", "Seccomp:\t2" in open("/proc/%d/status" % report["qemu"]).read())
        fds = open_files(report["qemu"])
        check("none: QEMU holds no file outside its directory", all(not f.startswith("/") or f.startswith((vm.dir, "/dev/", img)) for f in fds), fds)
        r = vm.shell("id -u; " + REACH)
        check("none: a command runs and reaches nothing of the host", r.stdout.startswith(b"1000\nUNREACHED"), (r.stdout, r.stderr))
        vm.shell("sudo sh -c 'head -c 3000000 /dev/zero | tr \"\\0\" x >/dev/ttyS0'")
        size = sum(os.path.getsize(vm.dir + "/" + f) for f in os.listdir(vm.dir) if f.startswith("serial.log"))
        check("none: 3 MB on the serial line leave a bounded log", 400000 < size <= 2 * 524288, size)
        vm.owner.send_signal(signal.SIGKILL)
        vm.owner.wait()
        took = gone_within(report["qemu"], 5)
        check("none: QEMU ends with its owner", took is not None)
        print("   QEMU gone %.0f ms after the owner's SIGKILL" % ((took or 0) * 1e3))
        time.sleep(0.3)
        check("none: the reason is in the log", "the owner is gone" in open(vm.log).read(), open(vm.log).read()[-300:])
        check("none: no stale qemu.pid", not os.path.exists(vm.dir + "/qemu.pid"))


def network_open():
    with Vm("open") as vm:
        check("open: boots to the ssh banner", vm.banner())
        info = vm.qmp("info network")
        check("open: QMP shows restrict=off", "restrict=off" in info, info)
        r = vm.shell(REACH)
        check("open: reaches the host's loopback, as said", r.stdout == b"REACHED\n", (r.stdout, r.stderr))
        report = vm.report()
        os.kill(report["warden"], signal.SIGKILL)
        took = gone_within(report["qemu"], 5)
        check("open: QEMU ends with a killed warden", took is not None)
        print("   QEMU gone %.0f ms after the warden's SIGKILL" % ((took or 0) * 1e3))


def hostagent_killed():
    with Vm("none") as vm:
        check("hostagent: boots", vm.banner())
        report = vm.report()
        os.kill(int(open(vm.dir + "/ha.pid").read()), signal.SIGKILL)
        took = gone_within(report["qemu"], 5)
        check("hostagent: QEMU ends with a killed hostagent", took is not None)
        print("   QEMU gone %.0f ms after the hostagent's SIGKILL" % ((took or 0) * 1e3))


def owner_gone_before():
    owner = subprocess.Popen(["sleep", "300"])
    vm = Vm("none", owner)
    owner.kill()
    owner.wait()
    with vm:
        end = time.time() + 20
        while time.time() < end and not (os.path.exists(vm.log) and os.path.getsize(vm.log)):
            time.sleep(0.05)
        text = open(vm.log).read() if os.path.exists(vm.log) else "no log"
        check("owner gone before the start: QEMU is not started", "warden: not started: the owner of this lane is gone" in text, text)


for test in (network_none, network_open, hostagent_killed, owner_gone_before):
    test()
print("%d failed" % len(failed))
sys.exit(1 if failed else 0)
