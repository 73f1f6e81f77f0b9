"""Which files of the repository are pages of its site, and where: mkdocs asks (its `hooks`).

Owns the site's tree, which is the repository's, so that a link between files is one between pages; a folder is its
README, and source that a page links to is a page that shows it. Never changes a file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = (
    "*.md",
    "docs/*.md",
    "docs/*/*.md",
    "docker/*.md",
    "compat_tests/*.md",
    "examples/*/*.md",
    "benchmarks/results/*.md",
)
PICTURES = ("docs/*.png", "docs/*/*.png", "docs/*.css")
SHOWN = ("examples/**/*.py", "examples/**/*.java")
LANGUAGES = {".py": "python", ".java": "java"}
RESULTS = "benchmarks/results"
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(?=[#)])")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Return the repository's pages in place of those that lie in one folder, and the theme's own files."""
    docs = Path(config.docs_dir)
    found = [each for each in files if each.abs_src_path is None or docs not in Path(each.abs_src_path).parents]
    found += [File.generated(config, _place(each), abs_src_path=str(each)) for each in _matching(PAGES + PICTURES)]
    for each in _matching(SHOWN):
        content = f"# {each.name}\n\n```{LANGUAGES[each.suffix]}\n{each.read_text(encoding='utf-8')}```\n"
        found.append(File.generated(config, f"{_place(each)}.md", content=content))
    found.append(File.generated(config, f"{RESULTS}/index.md", content=_results()))
    return Files(found)


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Let links to folders and to source lead to their pages."""
    folder = (ROOT / page.file.src_uri).parent

    def target(link: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / link[1]))
        if path.is_dir():
            return f"{link[1].rstrip('/')}/{'index' if _place(path) == RESULTS else 'README'}.md"
        return f"{link[1]}.md" if path.suffix in LANGUAGES else link[1]

    return _LINK.sub(target, markdown)


def _matching(patterns: tuple[str, ...]) -> list[Path]:
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern)})


def _place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _results() -> str:
    """Return a page that lists what was measured, the newest first."""
    names = sorted((each.name for each in (ROOT / RESULTS).glob("*.md")), reverse=True)
    return "# Figures\n\nWhat was measured, the newest first.\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
