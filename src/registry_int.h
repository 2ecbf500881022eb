/* SPDX-License-Identifier: Apache-2.0 */
/* Registry: what its own files share. */
#ifndef AL_REGISTRY_INT_H
#define AL_REGISTRY_INT_H

/* The newest PRAGMA user_version. */
int
al__registry_schema(void);

#endif
