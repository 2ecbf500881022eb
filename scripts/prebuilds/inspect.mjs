// SPDX-License-Identifier: Apache-2.0
// What a compiled file asks of the system that loads it, read from the file itself: ELF of 64 bits and Mach-O, little-endian.
import { readFileSync } from "node:fs";

const text = (bytes, at) => bytes.toString("latin1", at, bytes.indexOf(0, at));

/** @returns {{format: "elf", cpu: string, interpreter?: string, needed: string[], versions: string[], exports: string[], wanted: string[], flags: string[]}} */
function elf(b) {
  const cpu = { 62: "x64", 183: "arm64" }[b.readUInt16LE(18)] ?? `machine ${b.readUInt16LE(18)}`;
  const out = { format: "elf", cpu, interpreter: undefined, needed: [], versions: [], exports: [], wanted: [], flags: [] };
  const phoff = Number(b.readBigUInt64LE(32));
  const loads = [];
  let dynamic;
  for (let i = 0; i < b.readUInt16LE(56); i++) {
    const p = phoff + i * b.readUInt16LE(54);
    const part = {
      type: b.readUInt32LE(p),
      flags: b.readUInt32LE(p + 4),
      offset: Number(b.readBigUInt64LE(p + 8)),
      address: Number(b.readBigUInt64LE(p + 16)),
      size: Number(b.readBigUInt64LE(p + 32)),
    };
    if (part.type === 1) loads.push(part);
    if (part.type === 2) dynamic = part;
    if (part.type === 3) out.interpreter = text(b, part.offset);
    if (part.type === 0x6474e552) out.flags.push("RELRO");
    if (part.type === 0x6474e551 && part.flags & 1) out.flags.push("EXECUTABLE_STACK");
    if (part.type === 1 && (part.flags & 3) === 3) out.flags.push("WRITABLE_CODE");
  }
  if (dynamic === undefined) return out;
  const offset = (address) => {
    const part = loads.find((l) => address >= l.address && address < l.address + l.size);
    if (part === undefined) throw new Error("an address lies outside the file");
    return address - part.address + part.offset;
  };
  const tags = new Map();
  const needed = [];
  for (let p = dynamic.offset; p < dynamic.offset + dynamic.size; p += 16) {
    const [tag, value] = [Number(b.readBigInt64LE(p)), Number(b.readBigUInt64LE(p + 8))];
    if (tag === 1) needed.push(value);
    else tags.set(tag, value);
    if (tag === 0) break;
  }
  const names = tags.has(5) ? offset(tags.get(5)) : 0;
  out.needed = needed.map((n) => text(b, names + n));
  const more = tags.get(0x6ffffffb) ?? 0;
  if ((more & 1) !== 0 || tags.has(24) || ((tags.get(30) ?? 0) & 8) !== 0) out.flags.push("NOW");
  if ((more & 8) !== 0) out.flags.push("NODELETE");
  if (tags.has(15) || tags.has(29)) out.flags.push("RPATH");
  // The dynamic symbols end where their names begin, in every linker's layout; a name beyond the table is noise.
  if (tags.has(6) && names > 0) {
    const [start, size] = [offset(tags.get(6)), tags.get(10) ?? 0];
    const count = symbols(b, tags, offset);
    for (let i = 1; i < count; i++) {
      const p = start + i * 24;
      const name = b.readUInt32LE(p);
      if (name >= size) throw new Error("a symbol's name lies outside the table");
      const [binding, section] = [b[p + 4] >> 4, b.readUInt16LE(p + 6)];
      if (section !== 0) out.exports.push(text(b, names + name));
      else if (binding === 1) out.wanted.push(text(b, names + name));
    }
  }
  if (tags.has(0x6ffffffe)) {
    let p = offset(tags.get(0x6ffffffe));
    for (let i = 0; i < (tags.get(0x6fffffff) ?? 0); i++) {
      let q = p + b.readUInt32LE(p + 8);
      for (let j = 0; j < b.readUInt16LE(p + 2); j++) {
        out.versions.push(text(b, names + b.readUInt32LE(q + 8)));
        q += b.readUInt32LE(q + 12);
      }
      p += b.readUInt32LE(p + 12);
    }
  }
  return out;
}

/** How many dynamic symbols there are: the classic hash table says so, and of the GNU one the last chain's end does. */
function symbols(b, tags, offset) {
  if (tags.has(4)) return b.readUInt32LE(offset(tags.get(4)) + 4);
  if (!tags.has(0x6ffffef5)) return 0;
  const p = offset(tags.get(0x6ffffef5));
  const [buckets, first, bloom] = [b.readUInt32LE(p), b.readUInt32LE(p + 4), b.readUInt32LE(p + 8)];
  const table = p + 16 + bloom * 8;
  let last = first - 1;
  for (let i = 0; i < buckets; i++) last = Math.max(last, b.readUInt32LE(table + i * 4));
  if (last < first) return first;
  while ((b.readUInt32LE(table + buckets * 4 + (last - first) * 4) & 1) === 0) last++;
  return last + 1;
}

/** @returns {{format: "mach-o", cpu: string, kind: number, needed: string[], system?: string, signed: boolean, exports: string[], wanted: string[], bound: string[]}} */
function machO(b) {
  const cpu = { 0x0100000c: "arm64", 0x01000007: "x64" }[b.readUInt32LE(4)] ?? "another processor";
  const out = { format: "mach-o", cpu, kind: b.readUInt32LE(12), needed: [], system: undefined, signed: false, exports: [], wanted: [], bound: [] };
  const version = (n) => `${n >>> 16}.${(n >>> 8) & 255}`;
  for (let i = 0, p = 32; i < b.readUInt32LE(16); i++, p += b.readUInt32LE(p + 4)) {
    const command = b.readUInt32LE(p);
    if (command === 0xc || command === 0x80000018) out.needed.push(text(b, p + b.readUInt32LE(p + 8)));
    if (command === 0x32) out.system = `${{ 1: "macOS" }[b.readUInt32LE(p + 8)] ?? "another system"} ${version(b.readUInt32LE(p + 12))}`;
    if (command === 0x1d) out.signed = b.readUInt32LE(p + 12) > 0;
    if (command === 2) {
      const [at, count, names] = [b.readUInt32LE(p + 8), b.readUInt32LE(p + 12), b.readUInt32LE(p + 16)];
      for (let s = at; s < at + count * 16; s += 16) {
        const type = b[s + 4];
        if ((type & 0xe0) !== 0 || (type & 1) === 0) continue;
        const name = text(b, names + b.readUInt32LE(s)).replace(/^_/, "");
        if ((type & 0xe) !== 0) out.exports.push(name);
        // Else the library that has it is noted, or that any may have it.
        else (b[s + 7] === 0 || b[s + 7] === 0xfe ? out.wanted : out.bound).push(name);
      }
    }
  }
  return out;
}

/** Throws when the file is of neither kind. */
export function inspect(path) {
  const b = readFileSync(path);
  if (b.length > 64 && b.readUInt32BE(0) === 0x7f454c46 && b[4] === 2 && b[5] === 1) return elf(b);
  if (b.length > 32 && b.readUInt32LE(0) === 0xfeedfacf) return machO(b);
  throw new Error(`${path} is neither ELF nor Mach-O`);
}
