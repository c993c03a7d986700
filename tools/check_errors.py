"""Fails when docs/errors.md lacks a message of the library or of a program, or quotes one that is not in the source.

    python3 tools/check_errors.py [ROOT]

A message is a statement of src, include or apps that raises, that is, has one of the words of RAISES, and has a literal
of 16 characters and 3 words or more, adjacent literals joined. In src, include, apps/fsdprun and apps/frame also any
other one with a literal of 40 characters and 6 words: there texts are put together that are thrown elsewhere.

An entry is what stands in backquotes in the first column of a table with the heading `message`; `…` stands for what
differs. It covers a message if a part of it of 16 characters lies in one of the message's literals, or one of 10 is all
of such a literal. A part that covers more than MOST messages says too little.

Left out: fsdp-bench; FILES_LEFT_OUT, which print or cannot raise; statements with a word of SILENT (help texts, the
log, names of collectives, traces, internal assertions) unless they raise; messages whose literals are all shorter;
texts of LibTorch, of the system and of CLI11; more than one part of a message: one that is on the page may have grown.
"""

import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_coverage

RAISES = re.compile(r"\b(throw|static_assert|TORCH_(CHECK\w*|WARN\w*)|UsageError|Obstacle|ValidationError|Exit|check"
                    r"|expect|fail\w*|note|problem|refuse\w*|require|say)\b")
FLAGS = re.compile(r"\b(add(_\w+)?|command)\b")
SILENT = re.compile(FLAGS.pattern + r"|\b(c?out|description|log|snprintf|Span|subject|[tT]ag|TORCH_INTERNAL_ASSERT)\b")
FILES_LEFT_OUT = ("_test.cpp", "src/runtime/compat.h", "apps/fsdp-ckpt/numbers.cpp", "src/report/explain.cpp",
                  "src/train/progress.cpp", "apps/fsdprun/host_facts.cpp", "apps/fsdprun/host_report.cpp")
MOST = 6

TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|\#[^\n]*|"((?:\\.|[^"\\\n])*)"|'(?:\\.|[^'\\\n])+'"""
                   r"""|[A-Za-z_]\w*|\d[\w.']*|\s+|.""", re.DOTALL)
QUOTED = re.compile(r"`([^`]+)`")
GAP = "…"


def plain(literal):
    return re.sub(r"\s+", " ", re.sub(r"\\(.)", lambda escape: " " if escape[1] in "nt" else escape[1], literal))


def statements(text):
    """Line, code without literals, and literals of each."""
    line, code, literals, joins = 1, [], [], False
    for match in TOKEN.finditer(text):
        token = match[0]
        line += token.count("\n")
        if token.isspace() or token.startswith(("//", "/*", "#")):
            continue
        if token in ("{", "}", ";"):
            yield line, " ".join(code), literals
            code, literals, joins = [], [], False
        elif match[1] is None:
            code.append(token)
            joins = False
        else:
            literals = [*literals[:-1], literals[-1] + match[1]] if joins else [*literals, match[1]]
            joins = True


def is_long(literal, characters, words):
    return len(literal) >= characters and len(literal.split()) >= words


def is_message(path, code, literals):
    if any(is_long(literal, 16, 3) for literal in literals) and RAISES.search(code):
        return "throw" in code.split() or not FLAGS.search(code)
    return (path.startswith(("src/", "include/", "apps/fsdprun/", "apps/frame/")) and not SILENT.search(code)
            and any(is_long(literal, 40, 6) for literal in literals))


def read_source(root):
    """Pairs of a place and the literals of the message there, and every literal that there is."""
    messages, all_literals = [], set()
    for folder in ("src", "include", "apps"):
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix not in (".cpp", ".h") or name.endswith(FILES_LEFT_OUT) or name.startswith("apps/fsdp-bench"):
                continue
            for line, code, literals in statements(path.read_text(encoding="utf-8")):
                literals = [plain(literal) for literal in literals]
                all_literals.update(literals)
                if is_message(name, code, literals):
                    messages.append((f"{name}:{line}", literals))
    return messages, all_literals


def entries(text):
    """Line and quoted text of every entry of the page."""
    in_table = False
    for number, line in enumerate(text.splitlines(), 1):
        in_table = line.startswith("|") and (in_table or line.startswith("| message |"))
        if in_table:
            yield from ((number, quoted) for quoted in QUOTED.findall(line.split(" | ")[0]))


def check(root):
    """Problems as lines to print, and the number of messages and of entries."""
    root = pathlib.Path(root)
    page = root / "docs" / "errors.md"
    if not page.exists():
        return ["docs/errors.md is missing"], 0, 0
    messages, all_literals = read_source(root)
    everything = "\0".join(sorted(all_literals))
    problems, parts, count = [], {}, 0
    for line, entry in entries(page.read_text(encoding="utf-8")):
        count += 1
        for part in filter(None, (part.strip() for part in entry.split(GAP))):
            if part not in everything:
                problems.append(f"docs/errors.md:{line}: no source says '{part}'")
            parts[part] = line
    covers = dict.fromkeys(parts, 0)
    for place, literals in messages:
        found = [part for part in parts
                 if len(part) >= 10 and any(part == literal.strip() or len(part) >= 16 and part in literal
                                            for literal in literals)]
        if not found:
            problems.append(f"{place}: not in docs/errors.md: '{GAP.join(literals)}'")
        for part in found:
            covers[part] += 1
    problems += [f"docs/errors.md:{parts[part]}: '{part}' says too little: {found} messages have it"
                 for part, found in covers.items() if found > MOST]
    return problems, len(messages), count


if __name__ == "__main__":
    check_coverage.run(check, "", "errors: {} messages, {} entries")
