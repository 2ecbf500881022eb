/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a program for its version. Synchronous; on a thread that may block. */
#ifndef AL_ASK_H
#define AL_ASK_H

#define AL_ASK_LINE 256
#define AL_ASK_MS 5000u

/* The first line of `program --version`, printable. 0, or -ETIMEDOUT, -EIO (it failed), -errno. */
int
al_ask_version(const char *program, char line[AL_ASK_LINE]);

#endif
