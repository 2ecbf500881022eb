// Every source file starts with a comment and has no blanks at the ends of its lines.
import { readdirSync, readFileSync } from "node:fs";
import pc from "picocolors";

const files = ["src", "tools"].flatMap((dir) => readdirSync(dir).filter((f) => f.endsWith(".mjs")).map((f) => `${dir}/${f}`));
const wrong = files.filter((file) => {
  const text = readFileSync(file, "utf8").replace(/^#!.*\n/, "");
  return !text.startsWith("//") || /[ \t]$/m.test(text);
});
for (const file of wrong) console.error(pc.red(`lint: ${file}`));
console.log(pc.green(`lint: ${files.length - wrong.length} of ${files.length} files`));
process.exitCode = wrong.length > 0 ? 1 : 0;
