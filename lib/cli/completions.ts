// SPDX-License-Identifier: Apache-2.0
// Completion for bash, zsh and fish, made of the tree of commands. Names of lanes and images are asked for when they are needed.
import { flat, type CommandNode, type Kind, type OptionNode } from "./tree.js";

export const SHELLS = ["bash", "zsh", "fish"] as const;
export type Shell = (typeof SHELLS)[number];

/** The hidden command that prints names, one a line. */
export const NAMES_COMMAND = "__names";
export const NAME_KINDS = ["lane", "image", "run"] as const;

const at = ({ path }: CommandNode): string => path.map((name) => `/${name}`).join("");
const flags = (o: OptionNode): string[] => [o.short, o.long].filter((f) => f !== undefined && f !== "") as string[];
const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`;

/** A kind as one word of a shell's: "lane", or "=open none". */
const word = (kind: Kind): string => (typeof kind === "string" ? kind : `=${kind.join(" ")}`);

/** Where the words go that decide: below which commands, which options take a value, what comes at which place. */
interface Tables {
  readonly below: readonly string[];
  readonly values: readonly (readonly [where: string, kind: string])[];
  readonly places: readonly (readonly [where: string, kind: string])[];
  readonly offers: readonly (readonly [where: string, commands: string, options: string])[];
}

function tablesOf(tree: CommandNode): Tables {
  const nodes = flat(tree);
  return {
    below: nodes.filter((n) => n.path.length > 0).map(at),
    values: nodes.flatMap((n) => n.options.filter((o) => o.value !== "").flatMap((o) => flags(o).map((f) => [`${at(n)} ${f}`, word(o.kind)] as const))),
    places: nodes.flatMap((n) => n.args.map((a, i) => [`${at(n)} ${a.variadic ? "*" : i}`, word(a.kind)] as const)),
    offers: nodes.map((n) => [at(n), n.commands.map((c) => c.name).join(" "), n.options.flatMap(flags).join(" ")] as const),
  };
}

/**
 * The part that bash and zsh have in common: sets `where` (the command, as /image/ls), `place` (how many arguments came before)
 * and `kind` (what the word under the cursor is), from `before` (the words before it, without the program).
 */
function common(tree: CommandNode): string {
  const { below, values, places, offers } = tablesOf(tree);
  const one = (list: readonly string[]): string => list.map(quoted).join(" | ");
  // What takes the same kind goes together; `*` in a place matches every number from there on.
  const grouped = (rows: readonly (readonly [string, string])[]): [string, string[]][] => {
    const groups = new Map<string, string[]>();
    for (const [where, kind] of rows) groups.set(kind, [...(groups.get(kind) ?? []), where]);
    return [...groups];
  };
  // Exact places come first: `shell NAME COMMAND...` has both.
  const place = ([kind, wheres]: [string, string[]]): string =>
    `    ${wheres.map((w) => (w.endsWith(" *") ? `${quoted(w.slice(0, -1))}*` : quoted(w))).join(" | ")}) kind=${quoted(kind)} ;;`;
  return `_agent_lane_where() {
  local word pending= rest=
  where= place=0 kind=
  for word in "\${before[@]}"; do
    if [ -n "$rest" ]; then place=$((place + 1)); continue; fi
    if [ -n "$pending" ]; then pending=; continue; fi
    case $word in
      --) rest=1 ;;
      -*) case "$where $word" in
            ${one(values.map(([w]) => w))}) pending=1 ;;
          esac ;;
      *) case "$where/$word" in
           ${one(below)}) where=$where/$word ;;
           *) place=$((place + 1))
              [ "$where" != /run ] || rest=1 ;;
         esac ;;
    esac
  done
  if [ -n "$pending" ]; then
    case "$where $word" in
${grouped(values).map(([kind, wheres]) => `      ${one(wheres)}) kind=${quoted(kind)} ;;`).join("\n")}
    esac
    return
  fi
  if [ -n "$rest" ]; then kind=command; return; fi
  case $current in -*) kind=options; return ;; esac
  case "$where $place" in
${[...grouped(places.filter(([w]) => !w.endsWith(" *"))), ...grouped(places.filter(([w]) => w.endsWith(" *")))].map(place).join("\n")}
  esac
}
_agent_lane_offers() {
  below= flags=
  case $where in
${offers.map(([where, commands, options]) => `    ${where === "" ? "''" : where}) below=${quoted(commands)} flags=${quoted(options)} ;;`).join("\n")}
  esac
}
`;
}

function bash(tree: CommandNode): string {
  return `# bash completion of agent-lane. To have it: eval "$(agent-lane completion bash)" in ~/.bashrc
${common(tree)}_agent_lane() {
  local current=\${COMP_WORDS[COMP_CWORD]} before=("\${COMP_WORDS[@]:1:COMP_CWORD-1}") where place kind below flags
  _agent_lane_where
  _agent_lane_offers
  COMPREPLY=()
  case $kind in
    options) COMPREPLY=($(compgen -W "$flags" -- "$current")) ;;
    '='*) COMPREPLY=($(compgen -W "\${kind#=}" -- "$current")) ;;
    lane | image | run) COMPREPLY=($(compgen -W "$("\${COMP_WORDS[0]}" ${NAMES_COMMAND} "$kind" 2>/dev/null)" -- "$current")) ;;
    dir) compopt -o dirnames ;;
    file) compopt -o default ;;
    command) if [ "$place" = 0 ]; then COMPREPLY=($(compgen -c -- "$current")); else compopt -o default; fi ;;
    none) ;;
    *) COMPREPLY=($(compgen -W "$below" -- "$current")) ;;
  esac
}
complete -F _agent_lane agent-lane
`;
}

/** zsh's own functions rely on its options, and on parameters that it has: $commands and $options must stay what they are. */
function zsh(tree: CommandNode): string {
  return `#compdef agent-lane
# zsh completion of agent-lane. To have it: agent-lane completion zsh >"\${fpath[1]}/_agent-lane", or eval "$(agent-lane completion zsh)" after compinit
${common(tree)}_agent_lane() {
  local current=\${words[CURRENT]} where place kind below flags program=\${words[1]}
  local -a before
  before=("\${(@)words[2,CURRENT-1]}")
  _agent_lane_where
  _agent_lane_offers
  case $kind in
    options) compadd -- \${=flags} ;;
    '='*) compadd -- \${=kind#=} ;;
    lane | image | run) compadd -- \${(f)"$("$program" ${NAMES_COMMAND} "$kind" 2>/dev/null)"} ;;
    dir) _files -/ ;;
    file) _files ;;
    command) if [ "$place" = 0 ]; then _command_names -e; else _files; fi ;;
    none) ;;
    *) compadd -- \${=below} ;;
  esac
}
if [ "$funcstack[1]" = _agent-lane ]; then _agent_lane "$@"; else compdef _agent_lane agent-lane; fi
`;
}

function fish(tree: CommandNode): string {
  const nodes = flat(tree);
  const text = (t: string): string => `'${t.replace(/[\\']/g, "\\$&").split("\n")[0]}'`;
  const short = (doc: string): string => text(doc.replace(/ \((?:default|choices): .*$/, ""));
  const source = (kind: Kind): string => {
    if (typeof kind !== "string") return `-x -a ${text(kind.join(" "))}`;
    if (kind === "lane" || kind === "image" || kind === "run") return `-x -a '(agent-lane ${NAMES_COMMAND} ${kind} 2>/dev/null)'`;
    if (kind === "dir") return "-x -a '(__fish_complete_directories)'";
    if (kind === "command") return "-x -a '(__agent_lane_inner_words)'";
    return kind === "file" ? "-r -F" : "-x";
  };
  const lines = nodes.flatMap((n) => {
    const here = `-n '__agent_lane_at "${at(n)}"'`;
    const option = (o: OptionNode): string => {
      const name = [o.short && `-s ${o.short.slice(1)}`, o.long && `-l ${o.long.slice(2)}`].filter(Boolean).join(" ");
      return `complete -c agent-lane ${here} ${name} -d ${short(o.doc)}${o.value === "" ? "" : ` ${source(o.kind)}`}`;
    };
    const arg = n.args[0];
    return [
      ...n.commands.map((c) => `complete -c agent-lane ${here} -f -a ${c.name} -d ${text(c.doc)}`),
      ...n.options.map(option),
      ...(arg === undefined || arg.kind === "none" ? [] : [`complete -c agent-lane ${here} ${source(arg.kind).replace(/^-[xr] /, "-f ").replace("-f -F", "-F")}`]),
    ];
  });
  const values = tablesOf(tree).values.map(([where]) => text(where)).join(" ");
  const below = nodes.filter((n) => n.path.length > 0).map((n) => text(at(n))).join(" ");
  return `# fish completion of agent-lane. To have it: agent-lane completion fish >~/.config/fish/completions/agent-lane.fish
# Prints the command that is being written, such as /image/ls; or --, and the words of the guest's command so far.
function __agent_lane_parse
    set -l where ""
    set -l pending
    set -l rest
    for word in (commandline -opc)[2..-1]
        if set -q rest[1]
            printf '%s\\n' $word
            continue
        end
        if set -q pending[1]
            set pending
            continue
        end
        switch $word
            case --
                set rest 1
                printf '%s\\n' --
            case '-*'
                contains -- "$where $word" ${values}; and set pending 1
            case '*'
                if contains -- "$where/$word" ${below}
                    set where $where/$word
                else if test "$where" = /run
                    set rest 1
                    printf '%s\\n' -- $word
                end
        end
    end
    set -q rest[1]; or printf '%s\\n' $where
end
function __agent_lane_at
    set -l said (__agent_lane_parse)
    test "$said[1]" = "$argv[1]"
end
function __agent_lane_inner
    set -l said (__agent_lane_parse)
    test "$said[1]" = --
end
function __agent_lane_inner_words
    set -l said (__agent_lane_parse)
    set -l line (string escape -- $said[2..-1]) (commandline -ct)
    complete -C (string join ' ' -- $line)
end
complete -c agent-lane -n __agent_lane_inner -x -a '(__agent_lane_inner_words)'
complete -c agent-lane -f
${lines.join("\n")}
`;
}

export function completionOf(shell: Shell, tree: CommandNode): string {
  return { bash, zsh, fish }[shell](tree);
}
