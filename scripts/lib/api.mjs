// SPDX-License-Identifier: Apache-2.0
// docs/API.md: every export of lib/index.ts with its signature and its docstring, as the TypeScript compiler sees them.
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const root = fileURLToPath(new URL("../..", import.meta.url));
const printer = ts.createPrinter({ removeComments: true, newLine: ts.NewLineKind.LineFeed });

/** The docstring of a symbol as Markdown: links and tags as text. "" when there is none. */
function docOf(symbol, checker) {
  const text = ts.displayPartsToString(symbol.getDocumentationComment(checker)).trim();
  const tags = symbol
    .getJsDocTags(checker)
    .filter((tag) => tag.name !== "internal")
    .map((tag) => `${tag.name === "throws" ? "Throws" : `@${tag.name}`} ${ts.displayPartsToString(tag.text)}`);
  return [text, ...tags].filter(Boolean).join("\n\n");
}

/** A declaration without its body, modifiers that say nothing to a caller, and `| undefined` behind a question mark. */
function signature(node) {
  const source = node.getSourceFile();
  const text = ts.isMethodDeclaration(node) || ts.isFunctionDeclaration(node) || ts.isConstructorDeclaration(node)
    ? `${source.text.slice(node.getStart(source), (node.body ?? node).pos)}`
    : printer.printNode(ts.EmitHint.Unspecified, node, source);
  return text
    .replace(/\s+/g, " ")
    .replace(/\( /g, "(")
    .replace(/,? \)/g, ")")
    .replace(/^(?:export |async |override |declare |readonly |public )+/, "")
    .replace(/^function /, "")
    .replace(/(\?: .*?) \| undefined;?$/, "$1")
    .replace(/[;{\s]+$/, "")
    .trim();
}

const hidden = (node) =>
  ts.getJSDocTags(node).some((tag) => tag.tagName.text === "internal") ||
  (node.name !== undefined && ts.isPrivateIdentifier(node.name)) ||
  (ts.getCombinedModifierFlags(node) & (ts.ModifierFlags.Private | ts.ModifierFlags.Protected)) !== 0;

/** What a class or an interface has of its own, in the order of the source; inspect.custom is for Node alone. */
function membersOf(node, checker) {
  return node.members
    .filter((member) => !hidden(member) && !ts.isConstructorDeclaration(member))
    .filter((member) => !member.getText().startsWith("[inspect.custom]"))
    .map((member) => ({
      name: member.name?.getText() ?? "",
      signature: ts.isGetAccessor(member) ? `${member.name.getText()}: ${checker.typeToString(checker.getTypeAtLocation(member))}` : signature(member),
      doc: docOf(checker.getSymbolAtLocation(member.name) ?? member.symbol, checker),
    }));
}

/** [{ kind, name, signature, doc, from, bases, members }] of all exports, in the order of lib/index.ts. */
export function exportsOf(file = join(root, "lib", "index.ts")) {
  const { config } = ts.readConfigFile(join(root, "tsconfig.json"), ts.sys.readFile);
  const { options } = ts.parseJsonConfigFileContent(config, ts.sys, root);
  const program = ts.createProgram([file], { ...options, noEmit: true });
  const checker = program.getTypeChecker();
  const module = checker.getSymbolAtLocation(program.getSourceFile(file));
  return checker.getExportsOfModule(module).map((symbol) => {
    const real = symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol;
    const node = real.declarations[0];
    const one = { name: symbol.name, doc: docOf(real, checker), from: `lib/${basename(node.getSourceFile().fileName)}`, members: [], bases: "" };
    if (ts.isFunctionDeclaration(node)) return { kind: "function", ...one, signature: signature(node) };
    if (ts.isClassDeclaration(node) || ts.isInterfaceDeclaration(node)) {
      const bases = (node.heritageClauses ?? []).map((clause) => clause.getText()).join(" ");
      return { kind: ts.isClassDeclaration(node) ? "class" : "interface", ...one, bases, members: membersOf(node, checker) };
    }
    if (ts.isTypeAliasDeclaration(node)) return { kind: "type", ...one, signature: signature(node).replace(/^type /, "") };
    throw new Error(`lib/index.ts: ${symbol.name} is of a kind that docs/API.md does not know`);
  });
}

const HEADINGS = [["function", "Functions"], ["class", "Classes"], ["interface", "Options, results and events"], ["type", "Types"]];

function entry({ kind, name, signature: text, doc, from, bases, members }) {
  const head = `### \`${kind === "function" ? `${name}()` : name}\``;
  const code = kind === "function" || kind === "type" ? `\`\`\`ts\n${text}\n\`\`\`` : bases && `*${kind} ${name} ${bases.replaceAll("<", "\\<")}*`;
  const list =
    kind === "class"
      ? members.map((m) => `#### \`${m.signature}\`\n\n${m.doc}`).join("\n\n")
      : members.map((m) => `- \`${m.signature}\`${m.doc === "" ? "" : `: ${m.doc.replace(/\s*\n\s*/g, " ")}`}`).join("\n");
  return [head, code, doc, list, `*From \`${from}\`.*`].filter(Boolean).join("\n\n");
}

/** The text of docs/API.md. */
export function apiPage(all = exportsOf()) {
  const parts = HEADINGS.map(([kind, title]) => {
    const those = all.filter((one) => one.kind === kind);
    return those.length === 0 ? "" : `## ${title}\n\n${those.map(entry).join("\n\n")}`;
  });
  return `# API

What \`import … from "@agent-lane/provider-lima"\` gives. Every failure is a \`LaneError\`, whose codes are in [ERRORS.md](ERRORS.md); the options of
\`lima()\` are also a table in the [README](../README.md).

${parts.filter(Boolean).join("\n\n")}

Made by \`scripts/generate-docs\` from the docstrings in \`lib/\`; change those.
`;
}
