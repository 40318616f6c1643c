"""`prefixprop evaluate`: how good and how well calibrated a run's predictions are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from prefixprop.cli.messages import clean_errors, need_report_packages, printable, refuse
from prefixprop.cli.predict import BatchTokensOption, IdOption, LongOption, TextOption
from prefixprop.data.files import Columns
from prefixprop.runs.directory import RunDirectory

if TYPE_CHECKING:
    from prefixprop.evaluate import LabelRow, PredictionSet, Trust


@dataclass(frozen=True)
class _Evaluated:
    """Predictions before calibration and, if there is a temperature, after it."""

    what: str
    before: PredictionSet
    after: PredictionSet | None = None
    temperature: float | None = None
    trust: Trust | None = None

    @property
    def accepted(self) -> dict[str, Any] | None:
        """How many of these documents are accepted, and how many of those are right."""
        if self.trust is None or self.after is None:
            return None
        return {"target": self.trust.target, **self.trust.on(self.after.probabilities, self.after.known_labels)}


_OF_SPLIT = ("split", "data_dir")
_OF_INPUT = ("text_column", "label_column", "label_separator", "id_column")


def evaluate(
    context: typer.Context,
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Directory of a finished run; optional with --predictions."),
    ] = None,
    split: Annotated[Literal["dev", "test"], typer.Option(help="Which split of the run's task to predict.")] = "test",
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="A local copy of the task's data.")] = None,
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Your labelled documents: JSON lines, CSV, TSV or Parquet; for a run on WikiHop, questions "
            "as QAngaroo has them.",
        ),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Stored predictions, such as RUN/predictions/test.jsonl; no model is loaded.",
        ),
    ] = None,
    text_column: TextOption = "text",
    label_column: Annotated[str, typer.Option(metavar="NAME", help="Column of --input with the labels.")] = "label",
    label_separator: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What separates the labels of a document, such as ';'. Lists need none."),
    ] = None,
    id_column: IdOption = None,
    long: LongOption = "truncate",
    batch_tokens: BatchTokensOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the reliability diagram (png, pdf, svg).")
    ] = None,
    confusion: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the confusion matrix (png, pdf, svg).")
    ] = None,
) -> None:
    """Show how accurate and how well calibrated a run is.

    It uses a split of the run's task, your labelled file or stored predictions. Metrics are shown before and after
    temperature scaling.

    Example: prefixprop evaluate runs/letters --input more-letters.csv
    """
    with clean_errors():
        if predictions is not None:
            refuse(
                context,
                ("input_file", "long", "batch_tokens", *_OF_SPLIT, *_OF_INPUT),
                "--predictions are stored already",
            )
        elif input_file is not None:
            refuse(context, _OF_SPLIT, "--input has the documents")
        else:
            refuse(context, _OF_INPUT, "it is for --input")
        _check_figures(figure, confusion)
        if predictions is not None:
            evaluated = _stored(predictions, run)
        elif run is None:
            raise ValueError("Give the directory of a run, or stored predictions with --predictions FILE.")
        else:
            RunDirectory(run).check_finished()
            with Console(stderr=True).status("loading the model") as status:
                from prefixprop.predict import PredictionOptions, load_run
                from prefixprop.predict.run_data import predict_file, predict_split

                trained = load_run(run)
                if trained.answers_questions:
                    refuse(context, _OF_INPUT, "questions have columns of their own")
                    refuse(context, ("long",), "questions are always read in chunks")
                status.update("predicting")
                options = PredictionOptions(long, batch_tokens)
                if input_file is None:
                    what = f"{split} of {run}"
                    before, after = predict_split(trained, split, options, data_dir)
                else:
                    what = f"{input_file} with {run}"
                    columns = Columns(text_column, label_column, id_column, separator=label_separator)
                    before, after = predict_file(trained, input_file, columns, options)
            evaluated = _Evaluated(what, before, after, trained.temperature.value, trained.trust)
        _print(evaluated, as_json)
        _draw(evaluated, figure, confusion)


def _stored(path: Path, run: Path | None) -> _Evaluated:
    from prefixprop.evaluate import read_predictions

    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file of predictions.")
    of_run = RunDirectory(path.parent.parent)
    if path.parent == of_run.predictions_folder and of_run.is_run():
        of_run.check_intact(predictions=True)
    before = read_predictions(path)
    if run is None:
        return _Evaluated(str(path), before)
    directory = RunDirectory(run)
    directory.check_finished()
    temperature = directory.read_temperature()
    after = before.with_temperature(temperature)
    return _Evaluated(str(path), before, after, temperature.value, directory.read_trust())


def _print(evaluated: _Evaluated, as_json: bool) -> None:
    from prefixprop.evaluate import label_table

    rows = label_table(evaluated.before) if evaluated.before.label_names is not None else []
    before = evaluated.before.evaluate()
    after = None if evaluated.after is None else evaluated.after.evaluate()
    what = printable(evaluated.what)
    if as_json:
        record: dict[str, object] = {"evaluated": what, "before": before, "after": after}
        record |= {"temperature": evaluated.temperature, "labels": [asdict(row) for row in rows]}
        record |= {"accepted": evaluated.accepted} if evaluated.accepted else {}
        typer.echo(json.dumps(record, ensure_ascii=False, indent=2, allow_nan=False))
        return
    typer.echo(what)
    if evaluated.temperature == 1:  # mixed answers are calibrated already
        after = None
    table = Table("metric")
    table.add_column("before scaling" if after else "value", justify="right")
    if after is not None:
        table.add_column(f"after scaling (T = {evaluated.temperature:.3f})", justify="right")
    for name, value in before.items():
        values = [value] if after is None else [value, after[name]]
        table.add_row(name, *(f"{value:,}" if name == "documents" else f"{value:.4f}" for value in values))
    Console().print(table)
    if found := evaluated.accepted:
        right = f", {found['accuracy']:.1%} of them right (target {found['target']:.1%})" if found["accepted"] else ""
        Console().print(f"Accepted: {found['accepted']:,} of {found['documents']:,} documents{right}.")
    if rows:
        _print_labels(rows)


def _print_labels(rows: Sequence[LabelRow]) -> None:
    table = Table(title="Labels (AP: average precision)", title_justify="left")
    table.add_column("label", overflow="fold")
    for column in ("documents", "predicted", "precision", "recall", "F1", "AP"):
        table.add_column(column, justify="right")
    for row in rows:
        known = [row.precision, row.recall, row.f1, row.average_precision]
        cells = ["" if value is None else f"{value:.3f}" for value in known]
        table.add_row(Text(printable(row.label)), f"{row.support:,}", f"{row.predicted:,}", *cells)
    Console().print(table)


def _check_figures(*paths: Path | None) -> None:
    """Fail before the work, not after it."""
    for path in filter(None, paths):
        need_report_packages("Figures")
        from prefixprop.report.figures import check_ending

        check_ending(path)


def _draw(evaluated: _Evaluated, figure: Path | None, confusion: Path | None) -> None:
    from prefixprop.evaluate import confusion_counts, reliability

    if confusion is not None and (evaluated.before.label_names is None or evaluated.before.several_labels):
        raise ValueError("--confusion needs documents with one label each, of labels that all documents share.")
    labels, title = evaluated.before.known_labels, printable(evaluated.what)
    if figure is not None:
        from prefixprop.report import plot_reliability

        after = None if evaluated.after is None else reliability(evaluated.after.probabilities, labels)
        before = reliability(evaluated.before.probabilities, labels)
        plot_reliability(before, after, figure, temperature=evaluated.temperature, title=title)
    if confusion is not None:
        from prefixprop.report import plot_confusion

        counts = confusion_counts(evaluated.before.probabilities, labels)
        plot_confusion(counts, evaluated.before.label_names or (), confusion, title=title)
