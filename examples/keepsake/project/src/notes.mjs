// Notes, one a line, in the order in which they came.
export class Notes {
  #notes = [];

  /** Adds a note; an empty one is no note. */
  keep(text) {
    const note = text.trim();
    if (note === "") throw new RangeError("an empty note");
    this.#notes.push(note);
    return this.#notes.length;
  }

  toString() {
    return this.#notes.map((note, i) => `${i + 1}. ${note}`).join("\n");
  }
}
