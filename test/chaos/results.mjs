// SPDX-License-Identifier: Apache-2.0
// What a line of the results says.
/** Something was there that must not be, or something foreign no longer was. */
export const isBad = (r) => r.survivors.length + r.leftovers.length + r.foreign.length > 0 || r.sweep !== undefined || r.wrong !== undefined;
