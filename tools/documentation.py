"""What mkdocs.yml needs besides settings: pages from the root of the repository, and docstrings made into Markdown."""

import inspect
import re
from pathlib import Path

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
FROM_ROOT = ("ARCHITECTURE.md", "CHANGELOG.md")


def on_files(files, config):
    """Add the pages that are not in docs/."""
    for name in FROM_ROOT:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown, page, config, files):
    """Fill in sections of README.md, and make links right that lead from or to the root."""

    def section(mark):
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        return re.search(rf"^## {mark[1]}\n(.*?)(?=^## )", text, re.M | re.S)[1]

    markdown = re.sub(r"^<!-- README\.md: (\w+) -->$", section, markdown, flags=re.M)
    return markdown.replace("](docs/", "](").replace("](../ARCHITECTURE.md", "](ARCHITECTURE.md")


class Docstrings(griffe.Extension):
    """Docstrings are written as NumPy's are; where that is not Markdown, it is made so before they are parsed."""

    def on_instance(self, *, obj, **kwargs):
        if obj.name == "__init__" and obj.docstring and obj.docstring.value.startswith("Initialize self"):
            obj.docstring = None  # Python's own
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)

    def on_class_members(self, *, node, cls, **kwargs):
        """The parameters of a compiled class are those that it tells, not those of object."""
        compiled = getattr(node, "obj", None)
        if getattr(compiled, "__text_signature__", None) and "__init__" in cls.members:
            kind = griffe.ParameterKind.positional_or_keyword
            told = inspect.signature(compiled).parameters.values()
            cls.members["__init__"].parameters = griffe.Parameters(
                *(griffe.Parameter(p.name, kind=kind, default=repr(p.default)) for p in told)
            )


def to_markdown(text):
    """`::` before an indented block becomes a colon, prompts become fenced blocks, and what stands behind a section
    without belonging to it, a section of its own.
    """
    lines = re.sub(r"::$", ":", text, flags=re.M).split("\n")
    made, margin, section = [], None, ""
    for line, before, after in zip(lines, ["", *lines], [*lines[1:], ""]):
        prompt = line.lstrip().startswith(">>>")
        if re.fullmatch("---+", after) and line:
            section = line
        elif section not in ("", "Notes", "Examples") and line[:1].strip() and not before:
            section = "Examples" if prompt else "Notes"
            made += [section, "-" * len(section)]
        if prompt and margin is None:
            margin = line[: len(line) - len(line.lstrip())]
            made.append(f"{margin}```pycon")
        elif margin is not None and not line.strip():
            made.append(f"{margin}```")
            margin = None
        made.append(line)
    return "\n".join(made if margin is None else [*made, f"{margin}```"])
