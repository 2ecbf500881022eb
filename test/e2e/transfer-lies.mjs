// SPDX-License-Identifier: Apache-2.0
// A guest whose agent lies, on a real VM: root of the guest puts a program in the place of the agent that other processes
// attach to, which hands everything on but for one lie. Nothing of a lie reaches the host. Tests of transfer.test.mjs.
import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { it } from "node:test";
import { agentLane } from "./lib/lanes.mjs";
import { makeWorld, temporaries } from "./lib/world-of-files.mjs";

const RUN = "/run/agent-lane";
const LIAR = String.raw`#!/usr/bin/perl
use strict; use IPC::Open2; use IO::Select;
open my $f, '<', '${RUN}/lie' or die; chomp(my $lie = <$f>);
open2(my $from, my $to, '${RUN}/agent.true', @ARGV);
my (%copy, $cut, %buf);
my %say = (
  longer => sub { $_[0] == 25 and substr($_[1], 16, 8, pack('Q<', 1 + unpack('Q<', substr($_[1], 16, 8)))); 1 },
  shorter => sub { $_[0] == 25 and substr($_[1], 16, 8, pack('Q<', unpack('Q<', substr($_[1], 16, 8)) - 1)); 1 },
  giant => sub { $_[0] == 25 and substr($_[1], 16, 8, pack('Q<', ~0 >> 1)); 1 },
  dropped => sub { $_[0] != 20 || $cut++ },
  cut => sub { $_[0] == 20 and exit 0; 1 },
  name => sub { $_[0] == 20 and $_[1] =~ s/AAAvictim/..\/victim/; 1 },
  way => sub { $_[0] == 20 and $_[1] =~ s/(?<!A)AA(?=[\0-\x06])/../; 1 },
  git => sub { $_[0] == 20 and $_[1] =~ s/AAAA/.GiT/; 1 },
  out => sub { $_[0] == 20 and $_[1] =~ s/\.\.\/ooo/\/etc\/o/; 1 },
);
sub all { my ($fd, $p) = @_; while (length $p) { my $n = syswrite($fd, $p) // exit 0; substr($p, 0, $n, ''); } }
sub frames {
  my ($in, $out, $mine) = @_;
  sysread($in, $buf{$mine}, 65536, length($buf{$mine} // '')) or exit 0;
  while (length $buf{$mine} >= 12) {
    my ($stream, $type, $flags, $zero, $n) = unpack 'VCCvV', $buf{$mine};
    last if length $buf{$mine} < 12 + $n;
    my $p = substr $buf{$mine}, 12, $n;
    substr $buf{$mine}, 0, 12 + $n, '';
    $copy{$stream} = 1 if $mine eq 'host' && ($type == 17 || $type == 18);
    next if $mine eq 'guest' && $copy{$stream} && !$say{$lie}->($type, $p);
    all($out, pack('VCCvV', $stream, $type, $flags, 0, length $p) . $p);
  }
}
my $s = IO::Select->new(\*STDIN, $from);
for (;;) { for ($s->can_read) { $_ == $from ? frames($from, \*STDOUT, 'guest') : frames(\*STDIN, $to, 'host'); } }
`;
/** What is copied, what lie is told, what comes of it. */
const LIES = [
  ["longer", "f", /^error COPY_OUT_FAILED: .*came incomplete/],
  ["shorter", "f", /^error COPY_OUT_FAILED: .*came incomplete/],
  ["giant", "f", /^error COPY_OUT_FAILED: .*came incomplete/],
  ["dropped", "f", /^error COPY_OUT_FAILED: .*came incomplete/],
  ["cut", "f", /^error CHANNEL_CLOSED/],
  ["name", "tree", /^error COPY_OUT_FAILED: .*a name with a slash/],
  ["way", "tree", /^error COPY_OUT_FAILED: .*a name that is `\.` or `\.\.`/],
  ["git", "tree", /^error TREE_REFUSED: .*may be \.git/],
  ["longer", "tree", /^error COPY_OUT_FAILED: .*came incomplete/],
  ["dropped", "tree", /^error COPY_OUT_FAILED/],
  ["cut", "tree", /^error CHANNEL_CLOSED/],
];

export function lieTests(lane) {
  const guest = async (script, options) => {
    const r = await lane().exec(script, { cwd: "/home/agent", ...options });
    assert.equal(r.exitCode, 0, `${script}: ${r.stderr}`);
    return r.stdout;
  };
  it("lies of the guest's agent: lengths, streams that are cut, names that lead out", { timeout: 300_000 }, async (t) => {
    const world = makeWorld(),
      target = join(world.repo, "target"),
      to = join(world.repo, "tree");
    writeFileSync(target, "before");
    await guest(
      "rm -rf lies && mkdir -p lies/tree/AA lies/tree/AAAA/hooks && cd lies && echo pwn >f && echo pwn >tree/AAAvictim && " +
        "echo pwn >tree/AA/f && echo pwn >tree/AAAA/hooks/post-applypatch && ln -s ../ooo tree/AA/link",
    );
    await guest(`cat >liar && sudo mv ${RUN}/agent ${RUN}/agent.true && sudo install -m 755 liar ${RUN}/agent`, { stdin: LIAR });
    const cp = (from, host) => agentLane(["cp", `${lane().name}:/home/agent/lies/${from}`, host], { timeout: 60_000 });
    try {
      for (const [lie, what, said] of LIES) {
        await guest(`echo ${lie} | sudo tee ${RUN}/lie >/dev/null`);
        const r = cp(what, what === "f" ? target : to);
        t.diagnostic(`${lie}, ${what}: ${(r.errors ?? "came").trim().split("\n")[0]}`);
        assert.match(r.errors ?? "", said, `${lie} of ${what}`);
        assert.deepEqual([readFileSync(target, "utf8"), existsSync(to), temporaries(world.repo)], ["before", false, []]);
      }
      // A link that is made to lead out is left out, and said.
      await guest(`echo out | sudo tee ${RUN}/lie >/dev/null`);
      const { code } = cp("tree", to);
      assert.equal(code, 0);
      assert.deepEqual(readdirSync(to, { recursive: true }).sort(), ["AA", "AA/f", "AAAA", "AAAA/hooks", "AAAA/hooks/post-applypatch", "AAAvictim"]);
    } finally {
      await guest(`sudo mv ${RUN}/agent.true ${RUN}/agent && sudo rm ${RUN}/lie`);
    }
    assert.equal(cp("f", target).code, 0, "without a lie it comes");
    assert.equal(readFileSync(target, "utf8"), "pwn\n");
    world.untouched();
  });
}
