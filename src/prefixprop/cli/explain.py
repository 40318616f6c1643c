"""`prefixprop explain`: which passages of your documents speak for the label that a run gives them."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from prefixprop.atomic_files import write_text
from prefixprop.cli.messages import TerminalProgress, clean_errors, printable
from prefixprop.cli.predict import BatchTokensOption, IdOption, LongOption, TextOption
from prefixprop.data.files import Columns
from prefixprop.lazy_imports import import_optional
from prefixprop.predict.inputs import read_inputs, windows
from prefixprop.progress import Progress
from prefixprop.runs.directory import RunDirectory

if TYPE_CHECKING:
    from prefixprop.predict.explain import Explanation

STANDARD_OUTPUT = Path("-")
_SHOWN_CHARACTERS = 400  # of a passage in the terminal


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a finished run.")],
    documents: Annotated[
        str, typer.Argument(metavar="INPUT", help="Documents as for `prefixprop predict`; - for standard input.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write JSON lines, with all passages, here; - for standard output."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page here: the documents with marked passages.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Passages per document in the terminal.")] = 3,
    way: Annotated[
        Literal["occlusion", "reading"] | None,
        typer.Option(
            help="occlusion predicts again without each passage. reading hides each passage from the virtual tokens "
            "of readers, and the encoder reads the document once. Default: reading for readers, otherwise occlusion.",
        ),
    ] = None,
    text_column: TextOption = "text",
    id_column: IdOption = None,
    long: LongOption = "truncate",
    batch_tokens: BatchTokensOption = None,
) -> None:
    """Show which passages speak for and against a label.

    Without --output and --html the strongest passages are shown in the terminal.

    Example: prefixprop explain runs/letters new-letters.jsonl --html reasons.html
    """
    with clean_errors(), ExitStack() as stack:
        for name, file in {"--output": output, "--html": html}.items():
            if file is not None and file.is_dir():
                raise ValueError(f"{file}: this is a folder; give {name} the name of a file.")
        if html is not None:
            import_optional("jinja2", "HTML pages", extra="report")
        RunDirectory(run).check_finished()
        inputs = read_inputs(documents, Columns(text=text_column, id=id_column))
        with Console(stderr=True).status("loading the model"):
            from prefixprop.predict.explain import explanations_page
            from prefixprop.predict.loading import load_run

            trained = load_run(run)
            trained.check_reads_documents()
        lines: Any = None
        if output == STANDARD_OUTPUT:
            lines = sys.stdout
        elif output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            lines = stack.enter_context(output.open("w", encoding="utf-8"))
        page: list[tuple[str, Explanation]] = []
        terminal, done = Console(highlight=False), 0
        files = [str(file) for file in (output, html) if file not in (None, STANDARD_OUTPUT)]
        # A terminal that shows explanations has no bar among them.
        progress = stack.enter_context(TerminalProgress(Console(stderr=True))) if files else Progress()
        for window in windows(inputs, lambda document: document.text):
            texts = [document.text for document in window]
            found = trained.explain(texts, way=way, long=long, batch_tokens=batch_tokens)
            explained = [(document.id, one) for document, own in zip(window, found, strict=True) for one in own]
            if html is not None:
                page += explained
            for name, explanation in explained:
                if lines is not None:
                    record = {"id": name, **asdict(explanation)}
                    del record["document"]
                    lines.write(json.dumps(record, ensure_ascii=False) + "\n")
                elif html is None:
                    _show(terminal, name, explanation, top)
            done += len(window)
            progress.advance("explaining", done, None)
        if html is not None:
            write_text(html, explanations_page(f"Why these labels? {run.resolve().name}", page))
        if files:
            progress.line(f"{done:,} documents are explained in {' and '.join(files)}.")


def _show(terminal: Console, name: str, explanation: Explanation, top: int) -> None:
    """The passages with the largest scores, for or against the label, the largest first."""
    label = Text(printable(explanation.label), "bold")
    terminal.print(Text.assemble(f"{printable(name)}: ", label, f" {explanation.confidence:.4f}"))
    for passage in sorted(explanation.passages, key=lambda passage: -abs(passage.score))[:top]:
        text = " ".join(passage.text.split())
        text = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
        style = "green" if passage.score > 0 else "red"
        terminal.print(Text.assemble("  ", (f"{passage.score:+.2f}", style), f" {printable(text)}"))
