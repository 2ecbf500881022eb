// SPDX-License-Identifier: Apache-2.0
// The TypeScript that documents show compiles against the package and the real Sandcastle, and the commands of CONTRIBUTING are there.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import ts from "typescript";
import { expect, it } from "vitest";

const root = join(import.meta.dirname, "..", "..");
const read = (path: string) => readFileSync(join(root, path), "utf8");
const documents = ["README.md", ...readdirSync(join(root, "docs")).filter((file) => file.endsWith(".md")).map((file) => `docs/${file}`)];
const fences = (path: string, language: string) => [...read(path).matchAll(new RegExp(`^\`\`\`${language}\\n([^]*?)^\`\`\``, "gm"))].map((m) => m[1]!);

/** What the compiler says of these texts, each a module of its own. */
function complaints(modules: Record<string, string>): string[] {
  const options: ts.CompilerOptions = {
    strict: true, noEmit: true, skipLibCheck: true, target: ts.ScriptTarget.ES2022, lib: ["lib.es2023.d.ts", "lib.esnext.disposable.d.ts"], types: ["node"],
    module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext, baseUrl: root, paths: { "@agent-lane/provider-lima": ["lib/index.ts"] },
  };
  const host = ts.createCompilerHost(options);
  const file = (name: string) => join(root, "test", "ts", `${name}.mts`);
  const texts = new Map(Object.entries(modules).map(([name, text]) => [file(name), text]));
  const { fileExists, readFile, getSourceFile } = host;
  host.fileExists = (name) => texts.has(name) || fileExists(name);
  host.readFile = (name) => texts.get(name) ?? readFile(name);
  host.getSourceFile = (name, target, ...rest) => (texts.has(name) ? ts.createSourceFile(name, texts.get(name)!, target) : getSourceFile(name, target, ...rest));
  const program = ts.createProgram([...texts.keys()], options, host);
  return [...texts.keys()].flatMap((name) => {
    const source = program.getSourceFile(name)!;
    return [...program.getSyntacticDiagnostics(source), ...program.getSemanticDiagnostics(source)].map((d) => `${name}: ${ts.flattenDiagnosticMessageText(d.messageText, " ")}`);
  });
}

it("the TypeScript of the documents compiles", { timeout: 120_000 }, () => {
  // A module imports what it uses; what leaves something out ("…") is no whole one.
  const whole = documents.flatMap((path) => fences(path, "ts").map((text, i) => [`${path.replace(/\W/g, "_")}_${i}`, text] as const)).filter(([, text]) => /^import /m.test(text) && !text.includes("…"));
  expect(whole.length).toBeGreaterThanOrEqual(3);
  expect(complaints(Object.fromEntries(whole))).toEqual([]);
  expect(complaints({ wrong: 'import { lima } from "@agent-lane/provider-lima";\nlima({ cpu: 4 });\nlima({ cpus: "4" });\n' })).toHaveLength(2);
});

it("the commands for people who build are there", () => {
  const { scripts } = JSON.parse(read("package.json")) as { scripts: Record<string, string> };
  const check = read("scripts/check");
  const stages = [...check.matchAll(/^run_([\w-]+)\(\)/gm)].map((m) => m[1]!);
  const lines = ["CONTRIBUTING.md", "README.md", "docs/MACOS.md"].flatMap((path) => fences(path, "sh").flatMap((text) => text.split("\n"))).map((line) => line.replace(/\s+#.*$/, "").trim()).filter(Boolean);
  const wrong = lines.flatMap((line) => {
    const [program = "", ...words] = line.split(/\s+/);
    if (program === "npm" && words[0] === "run") return scripts[words[1]!] === undefined ? [line] : [];
    if (program.startsWith("scripts/") || program.startsWith("image/")) {
      if (!existsSync(join(root, program))) return [line];
      if (program !== "scripts/check") return [];
      return words[0]?.startsWith("--") ? (check.includes(words[0]) ? [] : [line]) : words.filter((word) => !stages.includes(word)).map(() => line);
    }
    if (program === "make") {
      const targets = words.filter((word) => !word.includes("=") && !word.includes("/"));
      return targets.filter((target) => !new RegExp(`^${target}:`, "m").test(read("Makefile"))).map(() => line);
    }
    return [];
  });
  expect(lines.length).toBeGreaterThan(10);
  expect(wrong).toEqual([]);
});
