// SPDX-License-Identifier: Apache-2.0
// The programs that the attacks run in the guest: Python, because every image of ours has it, and as root.

/** Everything that could be a file of the host's: mounts, devices, and each tag that a hypervisor may offer, tried. */
export const SHARES = String.raw`
import glob, subprocess
def words(path):
    try:
        with open(path) as f: return f.read().strip()
    except OSError: return ""
for module in ("9pnet_virtio", "9p", "virtiofs", "vboxsf", "vmhgfs"):
    subprocess.run(["modprobe", "-q", module], stderr=subprocess.DEVNULL, timeout=20)
devices = sorted({words(p) for p in glob.glob("/sys/bus/virtio/devices/*/device")})
tags = {words(p).rstrip("\0") for p in glob.glob("/sys/bus/virtio/drivers/*/*/mount_tag") + glob.glob("/sys/fs/virtiofs/*/tag")}
mounted = []
for tag in sorted(tags | {"mount0", "host", "share", "home", "lima-0"}):
    for kind, options in (("9p", "trans=virtio,version=9p2000.L"), ("virtiofs", "")):
        at = "/run/agent-lane-try/%s-%s" % (kind, tag.replace("/", "_"))
        os.makedirs(at, exist_ok=True)
        if subprocess.run(["mount", "-t", kind, "-o", options or "defaults", tag, at], stderr=subprocess.DEVNULL, timeout=20).returncode == 0:
            mounted.append("%s %s" % (kind, tag))
kinds = []
with open("/proc/self/mountinfo") as f:
    for line in f:
        kinds.append(line.split(" - ", 1)[1].split(" ")[0])
found = []
path = A["path"]
for start, dirs, files in os.walk("/"):
    if start in ("/proc", "/sys", "/dev", "/usr", "/boot") or start.count("/") > 12: dirs[:] = []; continue
    if A["name"] in files:
        try:
            with open(os.path.join(start, A["name"])) as f: found.append(f.read(200))
        except OSError: found.append("unreadable")
try:
    with open(path) as f: found.append(f.read(200))
except OSError: pass
wrote = "no"
try:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + "-guest", "w") as f: f.write("guest")
    wrote = "yes"
except OSError: pass
answer({"devices": devices, "kinds": sorted(set(kinds)), "mounted": mounted, "found": found, "wrote": wrote})
`;
export const SHARES_SHAPE = { devices: "texts", kinds: "texts", mounted: "texts", found: "texts", wrote: "text" } as const;
export interface Shares {
  readonly devices: readonly string[];
  readonly kinds: readonly string[];
  readonly mounted: readonly string[];
  readonly found: readonly string[];
  readonly wrote: string;
}

/** Every socket of the guest's file system is spoken to, as to a Docker and as to an ssh agent; every environment is read. */
export const SOCKETS = String.raw`
import base64, glob, hashlib, re, socket, stat, subprocess
environments = b""
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        with open(path, "rb") as f: environments += f.read(1 << 16) + b"\0\0"
    except OSError: pass
paths = set()
for start, dirs, files in os.walk("/"):
    if start in ("/proc", "/sys", "/usr"): dirs[:] = []; continue
    for name in files:
        p = os.path.join(start, name)
        try:
            if stat.S_ISSOCK(os.lstat(p).st_mode): paths.add(p)
        except OSError: pass
for name in (b"SSH_AUTH_SOCK=", b"DOCKER_HOST=unix://"):
    paths |= {p.decode("latin1") for p in re.findall(name + rb"([^\0]+)", environments)}
paths |= {"/var/run/docker.sock", "/run/docker.sock", "/run/host-services/ssh-auth.sock", A["docker"], A["agent"]}
spoken = {}
for p in sorted(paths):
    for hello in (b"GET /_ping HTTP/1.0\r\n\r\n", bytes([0, 0, 0, 1, 11])):
        try:
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(1)
            s.connect(p)
            s.sendall(hello)
            spoken[p[:200]] = "connected"
            s.close()
        except OSError as e:
            spoken.setdefault(p[:200], type(e).__name__)
keys, authorised = [], []
lists = {"authorized_keys", "authorized_keys2"}
for path in glob.glob("/etc/ssh/sshd_config*") + glob.glob("/etc/ssh/sshd_config.d/*"):
    try:
        with open(path) as f: lists |= {os.path.basename(w) for w in re.findall(r"(?mi)^\s*AuthorizedKeysFile\s+(\S+)", f.read())}
    except OSError: pass
for top in ("/home", "/root", "/etc", "/run", "/tmp", "/mnt", "/var/lib", "/opt"):
    for start, dirs, files in os.walk(top):
        for name in files:
            p = os.path.join(start, name)
            try:
                if not stat.S_ISREG(os.lstat(p).st_mode) or os.path.getsize(p) > 65536: continue
                with open(p, "rb") as f: data = f.read()
            except OSError: continue
            if b"PRIVATE KEY-----" in data: keys.append(hashlib.sha256(data).hexdigest())
            if name in lists: authorised += [l.decode("latin1") for l in data.splitlines() if l.strip() and not l.startswith(b"#")]
text = base64.b64encode(environments[:1 << 18]).decode()
answer({"environments": text, "spoken": spoken, "keys": keys, "authorised": authorised})
`;
export const SOCKETS_SHAPE = { environments: "text", spoken: "map of texts", keys: "texts", authorised: "texts" } as const;
export interface Sockets {
  /** Base64 of the environments of all processes. */
  readonly environments: string;
  readonly spoken: Readonly<Record<string, string>>;
  /** SHA-256 of each file with a private key in it. */
  readonly keys: readonly string[];
  readonly authorised: readonly string[];
}

/**
 * Connections and datagrams to each target, also as frames made by hand: these pass over the guest's own routes, which
 * would keep some of them from the network device. The control is the same code against a listener of the guest's.
 */
export const NETWORK = String.raw`
import errno, glob, socket, struct, threading, time
def name(e): return errno.errorcode.get(e.errno or 0, type(e).__name__)
def tcp(host, port, word):
    try:
        family, kind, _, _, to = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        s = socket.socket(family, kind)
        s.settimeout(3)
        s.connect(to)
        s.sendall(word.encode())
        s.settimeout(0.3)
        try: s.recv(64)
        except OSError: pass
        time.sleep(0.5) # whoever looks at the host's sockets must have time to see this one
        s.close()
        return "connected"
    except OSError as e: return name(e)
def udp(host, port, word):
    try:
        family, kind, _, _, to = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        s = socket.socket(family, kind)
        s.sendto(word.encode(), to)
        s.close()
        return "sent"
    except OSError as e: return name(e)
interface = [os.path.basename(p) for p in sorted(glob.glob("/sys/class/net/*")) if os.path.exists(p + "/device")]
def sum16(data):
    if len(data) % 2: data += b"\0"
    n = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while n >> 16: n = (n & 0xffff) + (n >> 16)
    return ~n & 0xffff
def send(kind, packet):
    if not interface: return "no interface"
    try:
        with open("/sys/class/net/%s/address" % interface[0]) as f: own = bytes.fromhex(f.read().strip().replace(":", ""))
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        s.bind((interface[0], 0))
        for gateway in ("5255c0a80502", "525600000002"):
            s.send(bytes.fromhex(gateway) + own + kind + packet)
        s.close()
        return "sent"
    except OSError as e: return name(e)
def frame4(host, protocol, payload):
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 7, 0, 64, protocol, 0, socket.inet_aton("192.168.5.15"), socket.inet_aton(host))
    ip = ip[:10] + struct.pack("!H", sum16(ip)) + ip[12:]
    return send(b"\x08\x00", ip + payload)
def frame6(host, protocol, payload, at):
    source, to = socket.inet_pton(socket.AF_INET6, "fec0::15"), socket.inet_pton(socket.AF_INET6, host)
    check = sum16(source + to + struct.pack("!II", len(payload), protocol) + payload)
    payload = payload[:at] + struct.pack("!H", check or 0xffff) + payload[at + 2:]
    return send(b"\x86\xdd", struct.pack("!IHBB", 6 << 28, len(payload), protocol, 64) + source + to + payload)
def raw(host, port, word):
    data = word.encode()
    packet = struct.pack("!HHHH", 41000, port, 8 + len(data), 0) + data
    return frame6(host, 17, packet, 6) if ":" in host else frame4(host, 17, packet)
def ping(host, port, word):
    data = word.encode()
    if ":" in host: return frame6(host, 58, struct.pack("!BBHHH", 128, 0, 0, 7, 1) + data, 2)
    packet = struct.pack("!BBHHH", 8, 0, 0, 7, 1) + data
    return frame4(host, 1, packet[:2] + struct.pack("!H", sum16(packet)) + packet[4:])
def query(host, port, word):
    labels = b"".join(bytes([len(l)]) + l.encode() for l in (word + ".example.com").split("."))
    packet = struct.pack("!6H", 4711, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(2)
    try:
        s.sendto(packet, (host, port))
        s.recv(512)
        return "answered"
    except OSError as e: return name(e)
ways = {"tcp": tcp, "udp": udp, "raw": raw, "ping": ping, "query": query}
heard = []
server = socket.create_server(("127.0.0.1", 0))
def listen():
    c, _ = server.accept()
    c.settimeout(5)
    heard.append(c.recv(100).decode("latin1"))
    c.close()
ear = threading.Thread(target=listen, daemon=True)
ear.start()
tcp("127.0.0.1", server.getsockname()[1], A["nonce"])
ear.join(5)
did = {}
def run(target): did[target["id"]] = ways[target["way"]](target["host"], target["port"], target["word"])
threads = [threading.Thread(target=run, args=(t,), daemon=True) for t in A["targets"]]
for t in threads: t.start()
for t in threads: t.join(10)
time.sleep(0.3)
answer({"control": "heard" if heard == [A["nonce"]] else "deaf", "did": did})
`;
export const NETWORK_SHAPE = { control: "text", did: "map of texts" } as const;
export interface Network {
  readonly control: string;
  /** What became of each target, by its id. */
  readonly did: Readonly<Record<string, string>>;
}

/** A listener on every address of the guest for some seconds; answers who came. `ready` is made when it listens. */
export const LISTENER = String.raw`
import socket, time
s = socket.socket(socket.AF_INET6)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
s.bind(("::", A["port"]))
s.listen(16)
s.settimeout(0.2)
c = socket.create_connection(("127.0.0.1", A["port"]), 5)
c.sendall(b"control")
c.close()
open("/run/agent-lane-listens", "w").close()
came = []
end = time.monotonic() + A["seconds"]
while time.monotonic() < end:
    try:
        v, _ = s.accept()
        v.settimeout(2)
        try: came.append(v.recv(100).decode("latin1"))
        except OSError: came.append("silence")
    except OSError: pass
    if os.path.exists("/run/agent-lane-enough"): break
answer({"came": came})
`;
export const LISTENER_SHAPE = { came: "texts" } as const;

/** Takes all the memory and all the disk that it can get, and says how far it came. */
export const GREED = String.raw`
import subprocess, time
total = int([l for l in open("/proc/meminfo") if l.startswith("MemTotal")][0].split()[1]) * 1024
hog = "b = []\nwhile True:\n    b.append(bytearray(16 << 20))\n    b[-1][::4096] = b'x' * 4096\n    open('/run/agent-lane-hog', 'w').write(str(len(b) * 16))"
p = subprocess.Popen([sys.executable, "-I", "-c", "open('/proc/self/oom_score_adj', 'w').write('1000')\n" + hog], stderr=subprocess.DEVNULL)
try: hogged = "ended by %s" % p.wait(A["seconds"])
except subprocess.TimeoutExpired:
    p.kill()
    hogged = "still took memory"
try: got = open("/run/agent-lane-hog").read()
except OSError: got = "0"
try:
    fd = os.open("/var/tmp/greed", os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(fd, 0, A["diskBytes"])
    disk = "got it"
except OSError as e: disk = os.strerror(e.errno)
try: os.unlink("/var/tmp/greed")
except OSError: pass
answer({"cpus": os.cpu_count() or 0, "memory": total, "hogged": hogged, "got": got, "disk": disk})
`;
export const GREED_SHAPE = { cpus: "number", memory: "number", hogged: "text", got: "text", disk: "text" } as const;
export interface Greed {
  readonly cpus: number;
  readonly memory: number;
  readonly hogged: string;
  /** MiB that the hog had. */
  readonly got: string;
  readonly disk: string;
}
