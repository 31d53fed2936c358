"""Pages of the site that are made of other files of the repository; mkdocs loads this file as a hook.

The changelog, the benchmarks, each example and each notebook get a page. Links to files that have no page lead to the
repository.
"""

import fnmatch
import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/plait-jax/plait/blob/main/"
LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)#\s]*)((?:#[^)\s]*)?\))")
FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
FENCE_INFO = re.compile(r"^( *```\w+) [^\n]*$", re.MULTILINE)  # what the tests read, as in ``python needs-torch``
DRAWING = re.compile(r"!\[[^]]*\]\(images/([\w-]+\.svg)\)")
FOR_CONTRIBUTORS = ("spec/", "decisions/")  # in the navigation of contributors, and not found by a reader's search

# Page of the site → the file of the repository that it shows.
COPIES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "benchmarks.md": "benchmarks/README.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """An entry of the navigation such as ``decisions/*.md`` stands for all files that it matches."""
    there = [file.relative_to(config.docs_dir).as_posix() for file in sorted(Path(config.docs_dir).rglob("*.md"))]
    config.nav = expanded(config.nav, [*there, *made_of_programs()])
    if "MIKE_DOCS_VERSION" in os.environ:  # mike builds this version beside others: the theme shows a list of them
        config.extra["version"] = {"provider": "mike"}
    return config


def expanded(entry: Any, there: list[str]) -> Any:
    if isinstance(entry, dict):
        return {title: expanded(inside, there) for title, inside in entry.items()}
    if not isinstance(entry, list):
        return entry
    named = set(re.findall(r"[\w/.-]+\.md", str(entry)))
    flat: list[Any] = []
    for each in entry:
        matched = fnmatch.filter(there, each) if isinstance(each, str) and "*" in each else None
        flat += [expanded(each, there)] if matched is None else [page for page in matched if page not in named]
    return flat


def on_files(files: Files, config: MkDocsConfig) -> Files:
    texts = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in COPIES.items()}
    texts |= {page: program_page(ROOT / source) for page, source in made_of_programs().items()}
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links lead to pages where there is one, and else to the repository."""
    if page.file.src_uri.startswith(FOR_CONTRIBUTORS):
        page.meta["search"] = {"exclude": True}
    sources = {**COPIES, **made_of_programs()}
    home = posixpath.dirname(sources.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    pages = {source: there for there, source in sources.items()}

    def follow(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(home, link[2]))
        there = pages.get(target, target.removeprefix("docs/"))
        if files.get_file_from_path(there) is not None and (target in pages or target.startswith("docs/")):
            return link[1] + posixpath.relpath(there, posixpath.dirname(page.file.src_uri) or ".") + link[3]
        return f"{link[1]}{REPOSITORY}{target}{link[3]}" if (ROOT / target).exists() else link[0]

    markdown = FENCE_INFO.sub(r"\1", markdown)
    blocks = [match.span() for match in FENCED.finditer(markdown)]
    in_a_block = lambda link: any(start <= link.start() < end for start, end in blocks)
    markdown = LINK.sub(lambda link: link[0] if in_a_block(link) else follow(link), markdown)
    return DRAWING.sub(lambda image: drawing(image[1]) or image[0], markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The theme would ask GitHub for stars of the repository: no page loads anything from elsewhere."""
    return output.replace('data-md-component="source"', "")


def drawing(name: str) -> str:
    """A drawing of docs/images as a part of the page, so that it has the colours of the page, in the dark too."""
    file = ROOT / "docs" / "images" / name
    return file.read_text(encoding="utf-8").replace("\n", "") if file.is_file() else ""


def made_of_programs() -> dict[str, str]:
    """Page → program or notebook, for each of ``examples/``."""
    found = [file for file in sorted((ROOT / "examples").rglob("*.*")) if file.suffix in (".py", ".ipynb")]
    found = [file for file in found if ".ipynb_checkpoints" not in file.parts]
    return {f"examples/{file.stem}.md": file.relative_to(ROOT).as_posix() for file in found}


def program_page(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        return "\n\n".join(cell_text(cell) for cell in json.loads(text)["cells"])
    source = file.relative_to(ROOT).as_posix()
    return f"# {file.stem.replace('_', ' ')}\n\n[{source}]({file.name})\n\n````python\n{text}````\n"


def cell_text(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([f"```python\n{source}\n```", *map(output_text, cell["outputs"])])


def output_text(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return (
            f'<img alt="the figure that the cell above draws" src="data:image/png;base64,{"".join(data["image/png"])}">'
        )
    return f"```text\n{''.join(output.get('text', data.get('text/plain', ''))).rstrip()}\n```"
