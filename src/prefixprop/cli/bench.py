"""`prefixprop bench`: how fast the attention and the prefix methods are on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from prefixprop.atomic_files import write_json
from prefixprop.choices import BACKENDS, MODEL_FAMILIES, MODEL_SIZES

if TYPE_CHECKING:
    from prefixprop.benchmarking.attention import AttentionCase, AttentionResult
    from prefixprop.benchmarking.device_profile import DeviceProfile
    from prefixprop.benchmarking.encoders import EncoderSize
    from prefixprop.benchmarking.timing import Timing

app = typer.Typer(no_args_is_help=True, help="Measure how fast the attention and the prefix methods are here.")

Model = Annotated[str, typer.Option(help=f"What encoder: {' or '.join(MODEL_FAMILIES)}.")]
Size = Annotated[str, typer.Option(help=f"Dimensions of the model: {' or '.join(MODEL_SIZES)}.")]
Backend = Annotated[str, typer.Option(help="How our attention is computed: auto, sdpa or triton.")]
Repeats = Annotated[int, typer.Option(min=1, help="Measurements of everything; the table shows their median.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")]
Figure = Annotated[Path | None, typer.Option(help="Draw a picture into this file (.png, .svg or .pdf).")]


@app.command()
def attention(
    model: Model = "longformer",
    size: Size = "mini",
    lengths: Annotated[
        str | None, typer.Option(help="Tokens of a document, such as 512,4096.", show_default="doubling from 512")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a batch, the same at every length.", show_default="the longest length"),
    ] = None,
    global_tokens: Annotated[
        int, typer.Option("--global", min=0, help="Global tokens of a document, which Longformer has.")
    ] = 9,
    dropout: Annotated[float, typer.Option(min=0.0, max=0.9, help="Of attention and hidden states.")] = 0.0,
    backend: Backend = "auto",
    repeats: Repeats = 5,
    hugging_face: Annotated[
        bool, typer.Option("--hugging-face/--no-hugging-face", help="Measure Hugging Face's attention too.")
    ] = True,
    methods: Annotated[
        bool,
        typer.Option("--methods", help="Measure each case with the whole model, LoRA, a prefix and kernels trained."),
    ] = False,
    targets: Annotated[
        bool, typer.Option("--targets", help="Measure the cases of docs/performance.md instead of growing lengths.")
    ] = False,
    json: Json = None,
    figure: Figure = None,
) -> None:
    """Measure our attention beside Hugging Face's: forward and training step, time and peak memory.

    Batches have the same number of tokens at every length: linear growth shows as an equal time per token.

    Example: prefixprop bench attention --size base --lengths 512,4096
    """
    wanted = _lengths(lengths)
    dimensions = _checked(model, size, backend, figure)

    from prefixprop.benchmarking.attention import METHODS, bench_attention
    from prefixprop.benchmarking.figures import plot_attention
    from prefixprop.benchmarking.records import record_of_attention, record_of_run

    chosen = _cases(wanted, tokens, global_tokens, dropout, targets)
    if model != "longformer":
        chosen = tuple(dict.fromkeys(replace(case, global_tokens=0) for case in chosen))
    if methods:
        chosen = tuple(replace(case, method=method) for case in chosen for method in METHODS)
    if (targets or methods) and figure is not None:
        raise typer.BadParameter(
            "the cases of --targets and --methods are of mixed kinds and make no curve.", param_hint="--figure"
        )
    console, title = Console(), _title(model, size)
    results: list[AttentionResult] = []
    with console.status("measuring ...") as status:

        def show(case: AttentionCase) -> None:
            status.update(f"measuring {case.batch} × {case.length} tokens ...")

        results += bench_attention(chosen, dimensions, repeats, backend, hugging_face, show)
    console.print(_attention_table(results, f"Attention: {title}"))
    if json is not None:
        record = record_of_run("attention", model, size, backend, repeats)
        write_json(json, record | {"results": record_of_attention(results)})
    if figure is not None:
        plot_attention(results, figure, title)


@app.command()
def runtime(
    model: Model = "longformer",
    size: Size = "mini",
    batch: Annotated[int, typer.Option(min=1, help="Sequences at a time.")] = 8,
    length: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")] = 4096,
    prefix: Annotated[int, typer.Option(min=1, help="Length j of the prefix.")] = 8,
    batches: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Batches one after the other in a measurement; 1 waits for the device after each.",
            show_default="10 on a GPU, 1 on a CPU",
        ),
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Time training steps instead of inference.")] = False,
    backend: Backend = "auto",
    repeats: Repeats = 50,
    hugging_face: Annotated[
        bool, typer.Option("--hugging-face", help="Add a row for Hugging Face's own attention without PEFT.")
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Also show where the GPU's time goes.")] = False,
    json: Json = None,
    figure: Figure = None,
) -> None:
    """Measure the paper's run-time table: no PEFT, prefix-tuning and prefix-propagation on the same random sequences.

    Methods take turns, so that a drift of the machine affects them all. The interval is a bootstrap over the rounds.

    Example: prefixprop bench runtime --size base --train
    """
    if prefix >= length:
        raise typer.BadParameter(f"{prefix} leaves no room in sequences of {length} tokens.", param_hint="--prefix")
    dimensions = _checked(model, size, backend, figure)

    from prefixprop.benchmarking.device_profile import profile_on_device
    from prefixprop.benchmarking.encoders import find_device
    from prefixprop.benchmarking.figures import plot_runtime
    from prefixprop.benchmarking.records import record_of_run, record_of_runtime
    from prefixprop.benchmarking.runtime import PAPER, bench_runtime, runtime_runs

    console, title = Console(), f"{_title(model, size)}, {batch} × {length} tokens, j = {prefix}"
    what = "training step" if train else "inference"
    batches = batches or (10 if find_device() == "cuda" else 1)
    if profile and find_device() != "cuda":
        raise typer.BadParameter("shows a GPU's kernels, and there is no GPU here.", param_hint="--profile")
    with console.status(f"measuring {what} ..."):
        runs = runtime_runs(dimensions, batch, length, prefix, train, backend, hugging_face)
        results = bench_runtime(runs, repeats, batches)
        profiles = {method: profile_on_device(run) for method, run in runs.items()} if profile else {}
    table = _table(f"Run time, {what}: {title}", ("method", "time", "over\nno PEFT", "95 % interval", "paper"))
    for result in results:
        relative, interval = "-", "-"
        if result.relative is not None and result.low is not None and result.high is not None:
            relative = _percent(result.relative)
            interval = f"{_change(result.low)} to {_percent(result.high)}"
        paper = _percent(PAPER[result.method]) if result.method in PAPER and not train else "-"
        table.add_row(result.method, _time(result.timing), relative, interval, paper)
    console.print(table)
    if profiles:
        console.print(_profile_table(profiles))
    if json is not None:
        facts = {
            "batch": batch,
            "length": length,
            "prefix": prefix,
            "batches": batches,
            "pass": "step" if train else "inference",
        }
        record = (
            record_of_run("runtime", model, size, backend, repeats) | facts | {"results": record_of_runtime(results)}
        )
        if profiles:
            record["profile"] = {method: asdict(each) for method, each in profiles.items()}
        write_json(json, record)
    if figure is not None:
        plot_runtime(results, figure, f"{what}: {title}", show_paper=not train)


def _checked(model: str, size: str, backend: str, figure: Path | None) -> EncoderSize:
    """Refuse bad options before anything is measured."""
    choices = {"--model": (model, MODEL_FAMILIES), "--size": (size, MODEL_SIZES)}
    for flag, (value, known) in (choices | {"--backend": (backend, ("auto", *BACKENDS))}).items():
        if value not in known:
            raise typer.BadParameter(f"{value!r} is unknown; choose one of {', '.join(known)}.", param_hint=flag)

    from transformers.utils import logging

    from prefixprop.attention.backends import check_backend
    from prefixprop.benchmarking.encoders import FAMILIES
    from prefixprop.report.figures.canvas import check_ending, new_figure

    try:
        check_backend(backend)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--backend") from error
    if figure is not None:
        try:
            check_ending(figure)
            new_figure(4, 4)
        except (ValueError, ImportError) as error:
            raise typer.BadParameter(str(error), param_hint="--figure") from error
    logging.set_verbosity_error()  # Hugging Face logs at every call that it pads
    return FAMILIES[model][size]


def _lengths(text: str | None) -> list[int] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise typer.BadParameter(
            f"{text!r} is not a list of lengths; write positive numbers such as 512,4096.", param_hint="--lengths"
        )
    return sorted({int(word) for word in words})


def _cases(
    lengths: list[int] | None, tokens: int | None, global_tokens: int, dropout: float, targets: bool
) -> tuple[AttentionCase, ...]:
    from prefixprop.benchmarking.attention import REPORTED_CASES, cases_of_lengths, doubling_lengths
    from prefixprop.benchmarking.encoders import find_device

    device = find_device()
    if targets:
        if lengths is not None or tokens is not None:
            raise typer.BadParameter(
                "has cases of its own; leave out --lengths and --tokens.", param_hint="--targets"
            )
        return REPORTED_CASES[device]
    chosen = lengths or doubling_lengths(device)
    try:
        return cases_of_lengths(chosen, tokens or max(chosen), global_tokens, dropout)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _attention_table(results: list[AttentionResult], title: str) -> Table:
    table = _table(
        title, ("documents × tokens", "pass", "Hugging\nFace", "prefixprop", "ratio", "µs per\ntoken", "peak\nGiB")
    )
    for result in results:
        theirs, ours, per_token = result.theirs, result.ours, result.microseconds_per_token
        table.add_row(
            _case(result.case),
            result.name,
            "-" if theirs is None else _time(theirs),
            _time(ours),
            "-" if result.ratio is None else f"{result.ratio:.1f}×",
            "-" if per_token is None else f"{per_token:.4g}",
            _memory(ours) if theirs is None else f"{_memory(theirs)} → {_memory(ours)}",
        )
    return table


def _profile_table(profiles: Mapping[str, DeviceProfile]) -> Table:
    from prefixprop.benchmarking.device_profile import KINDS

    table = _table(
        "Where the time of a call goes, in ms", ("", *(name.replace("prefix-", "prefix-\n") for name in profiles))
    )
    rows = {kind: [each.by_kind[kind] for each in profiles.values()] for kind in KINDS}
    rows["all kernels"] = [each.device for each in profiles.values()]
    rows["the host, until all are started"] = [each.host for each in profiles.values()]
    for name, values in rows.items():
        table.add_row(name, *(f"{value:.2f}" for value in values))
    table.add_row("number of kernels", *(str(each.kernels) for each in profiles.values()))
    return table


def _case(case: AttentionCase) -> str:
    dropout = f", dropout {case.dropout:g}" if case.dropout else ""
    everywhere = f", {case.global_tokens} global" if case.global_tokens else ""
    method = f",\n{case.method}" if case.method else ""
    recorded = ",\nrecorded" if case.recorded else ""
    return f"{case.batch} × {case.length}{everywhere}{dropout}{method}{recorded}"


def _table(title: str, columns: tuple[str, ...]) -> Table:
    """A table without vertical lines, which fits in 80 columns."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(columns[0])
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _title(model: str, size: str) -> str:
    from prefixprop.benchmarking.encoders import device_name, find_device

    device = find_device()
    return f"{model}, {size} size, {'bfloat16' if device == 'cuda' else 'float32'}, {device_name(device)}"


def _time(timing: Timing) -> str:
    return "out of memory" if timing.out_of_memory else _duration(timing.median)


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _memory(timing: Timing) -> str:
    return "-" if timing.peak_gib is None else f"{timing.peak_gib:.1f}"


def _percent(relative: float) -> str:
    return f"{_change(relative)} %"


def _change(relative: float) -> str:
    return f"{100 * (relative - 1):+.1f}"
