/* SPDX-License-Identifier: Apache-2.0 */
/* The least a static program can be: what one command costs without its own work. */
int
main(void) {
  return 0;
}
