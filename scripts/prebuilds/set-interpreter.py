# SPDX-License-Identifier: Apache-2.0
"""set-interpreter.py PROGRAM PATH: makes an ELF program ask for the loader at PATH, whose name is put at the end of the file."""
import struct
import sys

path, interp = sys.argv[1], sys.argv[2].encode() + b"\0"
with open(path, "r+b") as f:
    head = f.read(64)
    phoff, = struct.unpack_from("<Q", head, 32); entsize, num = struct.unpack_from("<HH", head, 54)
    f.seek(0, 2); end = f.tell(); f.write(interp)
    for i in range(num):
        f.seek(phoff + i * entsize)
        if struct.unpack("<I", f.read(4))[0] == 3:
            f.seek(phoff + i * entsize + 8); f.write(struct.pack("<Q", end)); f.seek(phoff + i * entsize + 32); f.write(struct.pack("<QQ", len(interp), len(interp)))
