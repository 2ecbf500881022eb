// SPDX-License-Identifier: Apache-2.0
// What a guest does before its disk becomes an image: nothing of the lane's own stays in it, and everything is written down.

/**
 * For root in the guest. What image/lane-init makes at each boot is taken away or made as the image's recipe makes it, so
 * that no lane has a host key, a name or a log of another one's. lane-init starts sshd late, so its key is waited for. The last step
 * makes the file system read-only whoever has files open on it; from then on the disk is at rest. The first line is there
 * because all this would be bad anywhere else.
 */
export const SETTLE = `set -u
fail() { echo "$*" >&2; exit 1; }
[ "$(cat /proc/1/comm 2>&1)" = lane-init ] || fail "the first program of the guest is not lane-init"
# until TENTHS COMMAND...
until_() { n=$1; shift; while ! "$@"; do n=$((n - 1)); [ $n -gt 0 ] || return 1; sleep 0.1; done; }
gone() { ! pgrep -x "$1" >/dev/null; }
if ! gone dockerd; then
  pkill -TERM -x dockerd
  until_ 600 gone dockerd || fail "the Docker daemon did not end"
fi
until_ 600 [ -e /run/agent-lane/sshd ] || fail "sshd did not start"
rm -f /etc/ssh/ssh_host_*
: >/etc/machine-id
: >/etc/resolv.conf
printf '127.0.0.1 localhost\\n::1 localhost ip6-localhost\\n' >/etc/hosts
echo lima-lane >/etc/hostname
find /var/log -xdev -type f -exec truncate -s 0 {} + 2>/dev/null
find /tmp /var/tmp -xdev -mindepth 1 -delete 2>/dev/null
rm -f /root/.bash_history /home/*/.bash_history
sync
echo u >/proc/sysrq-trigger
read_only() { awk '$2 == "/" { options = $4 } END { exit options !~ /^ro(,|$)/ }' /proc/mounts; }
until_ 600 read_only || fail "the file system stayed writable"
sync /dev/vda || fail "the disk could not be flushed"
`;
