# SPDX-License-Identifier: Apache-2.0
"""The recipe's inputs: reading the lock file, and fetching what it names from Debian's archives, checked by digest."""
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import time

DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
NPM = {"x86_64": "x64", "aarch64": "arm64"}
# Where a host that is not Debian of this suite takes packages from.
ARCHIVES = {"debian": "http://deb.debian.org/debian", "debian-security": "http://deb.debian.org/debian-security"}
GONE_STATUS = 3
SHA256 = re.compile(r"[0-9a-f]{64}")
POOL = re.compile(r"pool/[A-Za-z0-9.+~_%/-]+")


class Failure(Exception):
    """What the user is told, without a traceback; `status` is the process's."""

    def __init__(self, message, status=1):
        super().__init__(message)
        self.status = status


def run_main(function):
    try:
        sys.exit(function())
    except Failure as failure:
        print("image: %s" % failure, file=sys.stderr)
        sys.exit(failure.status)
    except subprocess.TimeoutExpired as late:
        print("image: %s did not end in %d s. Check that this machine reaches its mirrors and run it again." %
              (late.cmd[0], late.timeout), file=sys.stderr)
        sys.exit(1)


def load_lock(path):
    """The lock file, each field of each entry checked: its names become paths and arguments."""
    try:
        with open(path) as file:
            lock = json.load(file)
    except (OSError, ValueError) as error:
        raise Failure("the lock file %s cannot be read: %s. Make it anew: image/lock --update" % (path, error))
    wrong = lock_fault(lock)
    if wrong:
        raise Failure("the lock file %s is not valid: %s. Make it anew: image/lock --update" % (path, wrong))
    return lock


def lock_fault(lock):
    """What is wrong with the lock, or None."""
    if not isinstance(lock, dict) or lock.get("schema") != 1:
        return "its schema is not 1"
    if lock.get("arch") not in DEBIAN or not isinstance(lock.get("epoch"), int):
        return "arch or epoch is missing"
    names = set()
    for deb in lock.get("debs") or [{}]:
        fields = [deb.get(key) for key in ("name", "version", "file", "sha256", "source")]
        if not all(isinstance(field, str) and field for field in fields) or not isinstance(deb.get("size"), int):
            return "an entry of debs lacks a field: %s" % json.dumps(deb)[:100]
        if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", deb["name"]) or not SHA256.fullmatch(deb["sha256"]):
            return "deb %s has a field of a wrong shape" % deb["name"][:60]
        if not POOL.fullmatch(deb["file"]) or ".." in deb["file"] or deb["name"] in names:
            return "deb %s has a wrong path or is there twice" % deb["name"]
        names.add(deb["name"])
    for source in lock.get("sources", []):
        for file in source["files"]:
            if not POOL.fullmatch(file["file"]) or ".." in file["file"] or not SHA256.fullmatch(file["sha256"]):
                return "source %s has a field of a wrong shape" % source["name"]
    for package in lock.get("npm", []):
        if not re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", package["integrity"]):
            return "npm package %s has no integrity" % package["name"]
    return None


def part_of(entries, flavour):
    return [entry for entry in entries if flavour in entry["in"]]


def archives(suite):
    """This machine's own mirrors of the suite, Debian's where it has none; AGENT_LANE_DEBIAN_MIRROR names another one."""
    mirror = os.environ.get("AGENT_LANE_DEBIAN_MIRROR")
    if mirror:
        return {archive: "%s/%s" % (mirror.rstrip("/"), archive) for archive in ARCHIVES}
    found = dict(ARCHIVES)
    for uri, suites in host_sources():
        if suite in suites:
            found["debian"] = uri.rstrip("/")
        if suite + "-security" in suites:
            found["debian-security"] = uri.rstrip("/")
    return found


def host_sources():
    """Pairs (URI, suites) of the machine's own package sources that serve component main."""
    for path in sorted(glob.glob("/etc/apt/sources.list.d/*.sources")):
        with open(path) as file:
            for stanza in re.split(r"\n\s*\n", file.read()):
                fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.M))
                if "deb" in fields.get("Types", "").split() and "main" in fields.get("Components", "").split():
                    for uri in fields.get("URIs", "").split():
                        yield uri, fields.get("Suites", "").split()
    for path in ["/etc/apt/sources.list", *sorted(glob.glob("/etc/apt/sources.list.d/*.list"))]:
        if os.path.exists(path):
            with open(path) as file:
                for match in re.finditer(r"^deb[ \t]+(?:\[[^\]]*\][ \t]+)?(\S+)[ \t]+(\S+)[ \t]+(.*)$", file.read(), re.M):
                    if "main" in match[3].split():
                        yield match[1], [match[2]]


def digest(path, kind="sha256"):
    total = hashlib.new(kind)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def fetch(entries, suite, cache):
    """Every file of `entries` ({file, sha256}) below `cache`, named by its digest; returns digest → path."""
    os.makedirs(cache, exist_ok=True)
    paths = {entry["sha256"]: os.path.join(cache, entry["sha256"]) for entry in entries}
    missing = [entry for entry in entries if not os.path.exists(paths[entry["sha256"]])]
    for attempt in range(3):
        if not missing:
            return paths
        if attempt:
            print("image: %d of the files did not come, trying again in %d s" % (len(missing), attempt * 5), flush=True)
            time.sleep(attempt * 5)
        words = download(missing, suite, cache)
        gone = [entry for entry in missing if not os.path.exists(paths[entry["sha256"]]) and has_left(entry, words)]
        if gone:
            raise Failure(
                "INPUT_GONE: %d of the locked files have left the mirror or changed there: %s%s. Newer versions: agent-lane image lock --update "
                "(or image/lock --update), then build again." %
                (len(gone), ", ".join(os.path.basename(entry["file"]) for entry in gone[:8]), " …" if len(gone) > 8 else ""), GONE_STATUS)
        missing = [entry for entry in missing if not os.path.exists(paths[entry["sha256"]])]
    if missing:
        raise Failure("%d files could not be fetched, %s the first:\n%s\nCheck that this machine reaches its package mirror and run this again; "
                      "what was fetched is kept." % (len(missing), missing[0]["file"], words[-600:]))
    return paths


def has_left(entry, words):
    """True when the mirror itself said that it has no such file, or has another one under that name."""
    name = re.escape(os.path.basename(entry["file"]).replace("%3a", ":"))
    line = re.search(r"^[EW]: .*%s.*$(\n^ .*$)*" % name, words.replace("%3a", ":"), re.M)
    return bool(line and re.search(r"\b404\b|File not found|[Hh]ash [Ss]um|unexpected size|is not valid|Size mismatch", line[0]))


def download(entries, suite, cache):
    """One run of apt's own downloader, which knows the machine's proxies. Returns what it said."""
    words, base = "", archives(suite)
    for start in range(0, len(entries), 100):
        argv = ["/usr/lib/apt/apt-helper", "-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=60",
                "download-file"]
        for entry in entries[start:start + 100]:
            archive = "debian-security" if entry["file"].startswith("pool/updates/") else "debian"
            argv += ["%s/%s" % (base[archive], entry["file"]), os.path.join(cache, entry["sha256"] + ".new"), "SHA256:" + entry["sha256"]]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1800,
                              env={**os.environ, "LC_ALL": "C"})
        words += done.stdout.decode("utf-8", "replace")
    for entry in entries:
        path = os.path.join(cache, entry["sha256"])
        # The digest is ours to check, whatever the downloader checked.
        if os.path.exists(path + ".new") and digest(path + ".new") == entry["sha256"]:
            os.rename(path + ".new", path)
        for rest in glob.glob(glob.escape(path + ".new") + "*"):
            os.unlink(rest)
    return words
