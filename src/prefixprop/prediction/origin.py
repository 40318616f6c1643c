"""What made a file of predictions, kept in a small file beside it, so that nothing else goes on with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from prefixprop.atomic_files import write_json

_OTHERWISE = "choose another --output, or remove the file"


@dataclass(frozen=True)
class Origin:
    """What decides the lines of an output, apart from its input; `run` is the name of the directory, for people."""

    run: str
    fingerprint: str
    long: str
    format: str
    text_column: str
    id_column: str | None

    def write(self, output: Path) -> None:
        write_json(_beside(output), asdict(self))

    def check(self, output: Path) -> None:
        """Raise unless the output was begun with this origin."""
        try:
            earlier = Origin(**json.loads(_beside(output).read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError) as error:
            raise ValueError(
                f"{output}: --resume cannot go on, because {_beside(output).name}, which says what made the file, is "
                f"missing or damaged (version 0.1 wrote none); {_OTHERWISE}."
            ) from error
        if changed := self._changes(earlier):
            raise ValueError(
                f"{output}: --resume cannot go on, because the file was begun otherwise: {'; '.join(changed)}. Give "
                f"the same run and options, {_OTHERWISE}."
            )

    def _changes(self, earlier: Origin) -> list[str]:
        changes = []
        if earlier.fingerprint != self.fingerprint:
            same = "which has changed since" if earlier.run == self.run else f"now {self.run}"
            changes.append(f"the run was {earlier.run}, {same}")
        for name in ("long", "format", "text_column", "id_column"):
            before, now = getattr(earlier, name), getattr(self, name)
            if before != now:
                option = "--" + name.replace("_", "-")
                changes.append(f"{option} was {before or 'not given'}, now {now or 'not given'}")
        return changes


def _beside(output: Path) -> Path:
    return output.with_name(f"{output.name}.origin.json")
