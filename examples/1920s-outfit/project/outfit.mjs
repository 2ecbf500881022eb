// The command: asks the Python part what to wear, and shows it.
import { execFileSync } from "node:child_process";
import { program } from "commander";
import pc from "picocolors";

const { day, plain } = program.option("--day <weather>", "what it is like outside", "sunny").option("--plain", "no colours").parse().opts();
const pieces = execFileSync("python3", ["-m", "outfit", day], { cwd: import.meta.dirname, encoding: "utf8" }).trim().split("\n");
for (const piece of pieces) console.log(plain ? `- ${piece}` : `- ${pc.cyan(piece)}`);
