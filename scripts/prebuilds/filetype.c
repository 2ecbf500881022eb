/* SPDX-License-Identifier: Apache-2.0 */
/* The one function that the writer of pax archives takes from the file that knows all formats of libarchive, none of which is here. */
#include "archive_platform.h"
#include "archive.h"
#include "archive_entry.h"
#include "archive_private.h"
#include "archive_write_set_format_private.h"
#include <errno.h>

void
__archive_write_entry_filetype_unsupported(struct archive *a, struct archive_entry *entry, const char *format) {
  const char *name = archive_entry_pathname(entry);
  archive_set_error(a, ARCHIVE_ERRNO_FILE_FORMAT, "%s: %s has no such file type", name ? name : "an entry", format);
}
