# SPDX-License-Identifier: Apache-2.0
"""A guest whose channel is a virtio port, and the host's end of it: shared by the image tests."""
import hashlib
import hmac
import os
import re
import socket
import struct
import subprocess
import time

from guest import SECRET, Guest, free_port, load_manifest, make_cidata, make_key, run

DEADLINE = 120
HELLO, HELLO_ACK, CONFIG, CONFIG_ACK, ACK, EXEC, READ, DATA, EXIT = 1, 2, 4, 5, 6, 16, 17, 20, 25
ACK_EVERY = 65536


def prepare(directory, image):
    boot, key = load_manifest(image)["boot"]["qemu"], make_key(directory)
    with open(key + ".pub") as file:
        make_cidata(directory + "/cidata.iso", file.read())
    return boot, key


def start(directory, image, boot, key, word=" agentlane.port", port=True):
    """One guest in the shape a lane has; its disk is thrown away at the end."""
    disk, link, ssh = directory + "/disk.qcow2", directory + "/port.sock", free_port()
    run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", os.path.join(image, boot["disk"]), disk)
    arguments = ["-drive", "file=%s,format=qcow2,if=none,id=d0" % disk, "-device", "virtio-blk-pci,drive=d0",
                 "-drive", "id=c0,if=none,format=raw,readonly=on,file=%s/cidata.iso" % directory, "-device", "virtio-scsi,id=scsi0",
                 "-device", "scsi-cd,bus=scsi0.0,drive=c0", "-chardev", "file,id=s,path=CONSOLE", "-serial", "chardev:s",
                 "-netdev", "user,id=net0,net=192.168.5.0/24,dhcpstart=192.168.5.15,restrict=on,ipv6=off,hostfwd=tcp:127.0.0.1:%d-:22" % ssh,
                 "-device", "virtio-net-pci,netdev=net0", "-device", "virtio-rng-pci",
                 # Lima's own virtio console: it must not be taken for the channel.
                 "-device", "virtio-serial-pci,id=virtio-serial0,max_ports=1", "-chardev", "null,id=v", "-device", "virtconsole,chardev=v"]
    if port:
        arguments += ["-chardev", "socket,id=agent-lane,path=%s,server=on,wait=off" % link, "-device", "virtio-serial-pci,id=agent-lane-bus",
                      "-device", "virtserialport,bus=agent-lane-bus.0,chardev=agent-lane,id=agent-lane-port,name=agent-lane"]
    guest = Guest(directory, os.path.join(image, boot["kernel"]), os.path.join(image, boot["initrd"]), boot["cmdline"] + word, arguments, ssh,
                  load_manifest(image)["arch"])
    guest.key, guest.link = key, link
    return guest


class Host:
    """The host's end of the port."""

    def __init__(self, guest):
        end = time.monotonic() + 20
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(guest.link)
                break
            except OSError:
                self.socket.close()
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        self.socket.settimeout(DEADLINE)
        self.bytes = b""
        self.counted = self.acknowledged = 0  # bytes of the guest's frames

    def send_agent(self, path, token):
        with open(path, "rb") as file:
            agent = file.read()
        self.socket.sendall(b"agent-lane-port 1 %d %s\n" % (len(agent), token) + agent)

    def read(self, enough):
        while not enough(self.bytes):
            more = self.socket.recv(65536)
            if not more:
                raise RuntimeError("the port was closed")
            self.bytes += more

    def send(self, stream, kind, payload=b"", flags=0):
        self.socket.sendall(struct.pack("<IBBHI", stream, kind, flags, 0, len(payload)) + payload)

    def frame(self, kind):
        """Payload of the next frame of that type; other types are collected and dropped."""
        while True:
            self.read(lambda b: len(b) >= 12 and len(b) >= 12 + struct.unpack_from("<I", b, 8)[0])
            _, got, flags, _, n = struct.unpack_from("<IBBHI", self.bytes)
            payload, self.bytes = self.bytes[12:12 + n], self.bytes[12 + n:]
            self.count(got, 12 + n)
            if got == DATA:
                self.output += payload
            if got == kind:
                return payload

    def count(self, kind, n):
        """The guest sends no more than some 100 KiB before it is told how much has been read."""
        self.counted += 0 if kind == ACK else n
        if self.counted - self.acknowledged >= ACK_EVERY:
            self.acknowledged = self.counted
            self.send(0, ACK, struct.pack("<Q", self.counted))

    def open(self, agent):
        token = b"0123456789abcdef0123456789abcdef"
        self.send_agent(agent, token)
        self.read(lambda b: b"\nagent-lane-%s\n" % token in b)
        self.bytes = self.bytes.split(b"\nagent-lane-%s\n" % token, 1)[1]
        nonce = os.urandom(32)
        self.send(0, HELLO, b"ALCH" + struct.pack("<HH", 1, 1) + nonce)
        ack = self.frame(HELLO_ACK)
        proof = hmac.new(bytes.fromhex(SECRET), b"agent-lane proof 1" + nonce + ack[10:42], hashlib.sha256).digest()
        self.send(0, CONFIG, tlv(5, struct.pack("<I", 2)))
        return proof == ack[42:74], struct.unpack_from("<I", self.frame(CONFIG_ACK))[0]

    stream = 0

    def exec(self, command, user="agent"):
        self.stream, self.output = self.stream + 1, b""
        self.send(self.stream, EXEC, b"".join(tlv(1, word.encode()) for word in ("/bin/sh", "-c", command)) + tlv(4, user.encode()))
        self.frame(EXIT)
        return self.output.decode()


def tlv(tag, value):
    return struct.pack("<HI", tag, len(value)) + value


def ended(guest, seconds=30):
    try:
        guest.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return guest.process.returncode == 0


def step(guest, text):
    """When the console said a line, in seconds of the guest's own clock."""
    found = re.search(r"^lane-init ([0-9.]+) %s" % text, guest.console(), re.M)
    return float(found.group(1)) if found else None
