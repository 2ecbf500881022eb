/* SPDX-License-Identifier: Apache-2.0 */
/* What the platform files share among themselves; nobody else includes it. */
#ifndef AL_PLATFORM_PRIV_H
#define AL_PLATFORM_PRIV_H

#include "platform.h"

/* Who has this pid now; -ESRCH when nobody has. *exe_rc: 0, or why out->exe is "": -ENOENT when the program was removed
 * or the process is on its way out and has no memory left. */
int
al__plat_ident_now(pid_t pid, al_ident_t *out, int *exe_rc);
/* 0, or -EXDEV for a path that is empty, absolute, or has a ".." component. */
int
al__plat_beneath_check(const char *path);
/* Component by component with O_NOFOLLOW: for kernels that cannot do it in one call. */
int
al__plat_open_walk(int dirfd, const char *path, int flags, mode_t mode);
/* Copies the contents with pread and pwrite, leaving holes where the source has them. */
int
al__plat_copy_data(int in, int out);
/* True when members of the group can become root anyway, so that group-writable is no weakness (macOS: admin). */
bool
al__plat_group_trusted(gid_t gid);

#endif
