#!/usr/bin/env node
// The command: keeps the notes that it is given and shows them.
import { program } from "commander";
import { Notes } from "./notes.mjs";

program.argument("<notes...>").action((texts) => {
  const notes = new Notes();
  for (const text of texts) notes.keep(text);
  console.log(String(notes));
});
program.parse();
