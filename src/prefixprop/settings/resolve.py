"""From recipes and flags to the settings of a run: checked together, without unused ones, every value resolved.

Recipes are YAML; errors in them name `file:line`. A run's own settings are written in the same form.

A rank without LoRA changes nothing, nor does an alpha without a kernel. Such an unused setting gets its default back.
Given as a flag it is an error; in a recipe, which may serve several methods, it is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from prefixprop.data.rows import read_text
from prefixprop.data.tasks import MANY_DOCUMENTS, METHOD_OF_MANY, default_epochs, readers_schedule
from prefixprop.settings.declaration import SettingsError, close_match, problem_of
from prefixprop.settings.methods import owners
from prefixprop.settings.run_settings import SETTINGS, RunSettings, flag_of


def check_settings(settings: RunSettings, processes: int = 1, in_memory: bool = False) -> None:
    """Raise `SettingsError` unless these settings, each of which is valid, work together.

    With documents `in_memory` the settings name no source of data.
    """
    if problems := [*_source_problems(settings, in_memory), *_other_problems(settings, processes)]:
        raise SettingsError(problems)


def _source_problems(settings: RunSettings, in_memory: bool) -> Iterator[str]:
    sources = {"task": settings.task, "train_files": settings.train_files, "hub_dataset": settings.hub_dataset}
    given = [flag_of(name) for name, value in sources.items() if value] + ["documents in memory"] * in_memory
    if len(given) != 1:
        flags = ", ".join(flag_of(name) for name in sources)
        yield f"Give one source of data, one of {flags}" + (f"; got {' and '.join(given)}." if given else ".")
    parts = {"data_dir": "task", "dev_files": "train_files", "test_files": "train_files", "hub_config": "hub_dataset"}
    for name, source in parts.items():
        if getattr(settings, name) and not sources[source]:
            yield f"{flag_of(name)}: belongs to {flag_of(source)}, which is not given."
    if settings.data_dir is not None and not Path(settings.data_dir).is_dir():
        yield f"--data-dir: {settings.data_dir} is not a folder."
    for name in ("train_files", "dev_files", "test_files"):
        for file in getattr(settings, name):
            if not Path(file).exists():
                yield f"{flag_of(name)}: {file} does not exist."


def _other_problems(settings: RunSettings, processes: int) -> Iterator[str]:
    folds, fold, method = settings.folds, settings.fold, settings.method_row.name
    if folds is not None and fold is None:
        yield f"--fold: --folds is {folds}, so say which is left out: 0 to {folds - 1}."
    if fold is not None and folds is None:
        yield "--folds: --fold is given, so say how many there are: at least 2."
    if folds is not None and fold is not None and fold >= folds:
        yield f"--fold: with --folds {folds}, the last is {folds - 1}, got {fold}."
    if (settings.method_row.is_read_only or settings.is_mix) and settings.answers_questions:
        yield f"--method: {method} classifies documents, and {settings.task} asks questions; choose another method."
    if len(settings.label_column) > 1 and method != "readers":
        yield f"--label-column: {method} trains for one column; choose one, or --method readers."
    if len(set(settings.label_column)) < max(1, len(settings.label_column)):
        yield "--label-column: name each column once, and one at least."
    if len(settings.text_column) != 1:
        yield "--text-column: give one; a document is one text, so join the texts of a pair into one column first."
    if settings.lora_targets == ():
        yield "--lora-targets: name at least one layer, such as query."
    if settings.max_dev_documents == 0 and not settings.is_mix:
        yield f"--max-dev-documents: {method} needs a dev set; give at least 1, or leave it out."
    if settings.is_mix and processes > 1:
        yield f"--method: {method} trains on one device; start one process."
    if not settings.is_mix and settings.documents_per_step % processes:
        yield (
            f"--batch-size: {settings.documents_per_step} documents per step cannot be shared by {processes} "
            f"processes; choose a multiple of {processes}."
        )


def documents_at_once(settings: RunSettings, processes: int = 1) -> int:
    """How many documents a device computes at once: the most that --device-batch-size allows and make whole steps."""
    share = settings.documents_per_step // processes
    return next(count for count in range(min(settings.device_batch_size, share), 0, -1) if share % count == 0)


# Settings that only have an effect in some runs: which runs these are, in code and in words, and the settings.
_ONLY_IN: tuple[tuple[Callable[[RunSettings], bool], str, str], ...] = (
    (lambda run: run.kernel is not None, "a --kernel, such as exp", "alpha alpha_mode"),
    (lambda run: run.method_row.name == "readers", "--method readers", "mix_baseline keep_states"),
    (
        lambda run: not run.is_mix,
        "methods that train one model with a dev set",
        "keep early_stopping gradient_checkpointing attention_dropout baseline report_to",
    ),
    (
        lambda run: run.method_row.name != "tfidf",
        "methods that train on the encoder",
        "learning_rate epochs batch_size warmup dropout weight_decay max_grad_norm",
    ),
    (lambda run: run.answers_questions, "a --task with questions, such as wikihop", "chunk_reduction max_chunks"),
    (
        lambda run: not run.answers_questions,
        "tasks that classify documents",
        "pooling class_weights choose_by target_precision",
    ),
    (lambda run: run.task_row.has_baseline, "tasks that have a baseline", "baseline"),
    (
        lambda run: run.task is None,
        "--train-files and --hub-dataset",
        "text_column label_column id_column label_separator",
    ),
)


def unused_settings(settings: RunSettings) -> dict[str, str]:
    """The settings that change nothing in such a run, each with what it belongs to."""
    unused = {name: owner for holds, owner, names in _ONLY_IN if not holds(settings) for name in names.split()}
    of_methods = {name: owners(name) for name in SETTINGS if name not in settings.method_row.options}
    return unused | {name: f"--method {_listed(methods)}" for name, methods in of_methods.items() if methods}


def _listed(names: tuple[str, ...]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def refuse_unused(settings: RunSettings, given: Iterable[str]) -> None:
    """Raise `SettingsError` if one of the `given` settings changes nothing: the user expects that it does."""
    unused = unused_settings(settings)
    if found := [name for name in given if name in unused]:
        end = "and would change nothing here; leave it out."
        raise SettingsError(f"{flag_of(name)}: belongs to {unused[name]}, {end}" for name in found)


def unused_notes(settings: RunSettings) -> list[str]:
    """A sentence for every setting that is not at its default and changes nothing."""
    return [
        f"{name} belongs to {owner}, and changes nothing here"
        for name, owner in unused_settings(settings).items()
        if getattr(settings, name) != SETTINGS[name].default
    ]


def with_defaults(settings: RunSettings, names: Iterable[str]) -> RunSettings:
    """The settings with these at their defaults."""
    defaults: dict[str, Any] = {name: SETTINGS[name].default for name in names}
    return replace(settings, **defaults)


def with_method(settings: RunSettings, whole: int, processes: int = 1) -> RunSettings:
    """The settings with the method that is trained on a training set of `whole` documents.

    If none is given, many of the user's documents are for `METHOD_OF_MANY`, unless this lacks a given setting.
    """
    if settings.method is None and settings.task is None and processes == 1:
        of_many = replace(settings, method=METHOD_OF_MANY)
        if min(whole, settings.max_train_documents or whole) >= MANY_DOCUMENTS and not unused_notes(of_many):
            return of_many
    return replace(settings, method=settings.method_row.name)


def resolve(
    settings: RunSettings,
    limit: int | None = None,
    whole: int | None = None,
    several_labels: bool | None = None,
) -> RunSettings:
    """The settings with a value for everything that was left open.

    What the model decides, the longest document, stays open unless `limit` has the model's limit in tokens; what the
    training set decides, such as the epochs of your documents, unless `whole` has its size, and `several_labels` says
    whether a document can have several. Runs whose resolved settings agree are the same run, so this is what names,
    tables and resumption compare.
    """
    settings = with_defaults(settings, unused_settings(settings))
    task = settings.task_row
    documents = None if whole is None else min(whole, settings.max_train_documents or whole)
    values: dict[str, Any] = {"method": settings.method_row.name}
    if several_labels:
        if settings.target_precision is not None:
            raise SettingsError(["--target-precision: needs documents with one label each; leave it out."])
        values["choose_by"] = "average_precision"
    elif several_labels is False and settings.choose_by == "average_precision":
        raise SettingsError(["--choose-by: average_precision needs documents with several labels; choose macro_f1."])
    if settings.is_mix:
        if documents is not None and settings.is_prefix_method:
            values["epochs"], values["batch_size"] = readers_schedule(documents)
    else:
        values |= {
            "batch_size": settings.documents_per_step,
            "epochs": task.epochs,
            "num_virtual_tokens": task.num_virtual_tokens,
            "learning_rate": settings.method_row.learning_rate,
            "attention_dropout": settings.dropout,
        }
        if documents is not None and task.epochs is None:
            values["epochs"] = default_epochs(documents)
    settings = replace(settings, **{name: value for name, value in values.items() if getattr(settings, name) is None})
    return settings if limit is None else replace(settings, max_length=_max_length(settings, limit))


def _max_length(settings: RunSettings, limit: int) -> int:
    if settings.is_prefix_method and settings.layout == "reference" and settings.num_virtual_tokens:
        limit -= settings.num_virtual_tokens  # the released code shifts real tokens behind the prefix
    if settings.max_length is None:
        return min(settings.task_row.max_length or limit, limit)
    if settings.max_length > limit:
        more = f"{settings.max_length} tokens are more than the {limit} that {settings.model} reads here"
        remedy = "lower it, or choose a model that reads more (`prefixprop lengthen` makes one)"
        raise SettingsError([f"--max-length: {more}; {remedy}."])
    return settings.max_length


# --- recipes --------------------------------------------------------------------------------------------------------

ALIASES = {setting.alias: name for name, setting in SETTINGS.items() if setting.alias}
# A report reads thousands of runs. PyYAML has the fast loader where it was built with libyaml.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings that a YAML file names; `SettingsError` has all of its problems, each with `file:line`.

    >>> settings = override(RunSettings(), read_settings("recipes/hyperpartisan.yaml"))
    """
    values: dict[str, Any] = {}
    problems = []
    for entry in read_entries(Path(path)):
        location = f"{path}:{entry.line}"
        name = setting_name(entry.key)
        if name is None:
            problems.append(f"{location}: {unknown_setting(entry.key)}")
            continue
        if name in values:
            problems.append(f"{location}: {entry.key!r} is set twice; keep one of the lines.")
        values[name] = entry.value.plain
        if (problem := problem_of(RunSettings, name, entry.value.plain)) is not None:
            problems.append(f"{location}: {entry.key}: {problem}")
    if problems:
        raise SettingsError(problems)
    return values


def setting_name(key: Any) -> str | None:
    """The setting that a key of a YAML file means, None if there is none."""
    name = ALIASES.get(str(key), str(key)).replace("-", "_")
    return name if name in SETTINGS else None


def unknown_setting(key: Any, *other_keys: str) -> str:
    """A sentence about a key that is neither a setting nor one of the other keys that the file may have."""
    known = (*other_keys, *SETTINGS, *ALIASES)
    hint = close_match(str(key).replace("-", "_"), known) or f"; the settings are {', '.join(known)}"
    return f"there is no setting {key!r}{hint}."


def override(settings: RunSettings, values: Mapping[str, Any]) -> RunSettings:
    """The settings with some of them changed; unknown names and invalid values raise `SettingsError`."""
    return replace(settings, **values)


def settings_to_yaml(settings: RunSettings) -> str:
    """All settings, in groups, as YAML that `read_settings` reads."""
    lines: list[str] = []
    group = None
    values = asdict(settings)
    for name, setting in SETTINGS.items():
        if setting.group != group:
            group = setting.group
            lines += ["", f"# {group}"] if lines else [f"# {group}"]
        value = list(values[name]) if isinstance(values[name], tuple) else values[name]
        lines.append(yaml.safe_dump({name: value}, allow_unicode=True, width=1000).strip())
    return "\n".join(lines) + "\n"


# --- YAML with the numbers of its lines ---------------------------------------------------------------------------


@dataclass(frozen=True)
class YamlValue:
    """A value: as plain Python, and for a list its items and for a mapping its entries, each with its line."""

    line: int
    plain: Any
    items: tuple[YamlValue, ...] | None = None
    entries: tuple[YamlEntry, ...] | None = None


@dataclass(frozen=True)
class YamlEntry:
    """A key of a mapping with its value, and the line of the key."""

    line: int
    key: Any
    value: YamlValue


def read_entries(path: Path) -> tuple[YamlEntry, ...]:
    """The entries of a file that holds one mapping; `SettingsError` for any other file."""
    text = read_text(path)
    loader = _LOADER(text)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.AliasEvent):  # a few of them can stand for billions of values
                line = event.start_mark.line + 1
                raise SettingsError([f"{path}:{line}: aliases (*) are not read here; write the value again."])
        node = loader.get_single_node()
        if node is None:
            return ()
        if not isinstance(node, yaml.MappingNode):
            raise SettingsError([f"{path}:{node.start_mark.line + 1}: expected lines such as 'epochs: 10'."])
        return _entries(loader, node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise SettingsError([f"{path}{line}: broken YAML: {getattr(error, 'problem', None) or error}."]) from error
    finally:
        loader.dispose()


def _entries(loader: Any, node: yaml.MappingNode) -> tuple[YamlEntry, ...]:
    return tuple(
        YamlEntry(key.start_mark.line + 1, loader.construct_object(key, deep=True), _value(loader, value))
        for key, value in node.value
    )


def _value(loader: Any, node: yaml.Node) -> YamlValue:
    return YamlValue(
        node.start_mark.line + 1,
        loader.construct_object(node, deep=True),
        tuple(_value(loader, item) for item in node.value) if isinstance(node, yaml.SequenceNode) else None,
        _entries(loader, node) if isinstance(node, yaml.MappingNode) else None,
    )
