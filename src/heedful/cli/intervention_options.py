"""Options of every command that runs a model: parts switched off, and other interventions from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from heedful.cli.decoding_options import option
from heedful.cli.standard_streams import print_message
from heedful.errors import DataError

if TYPE_CHECKING:
    from heedful.inference.trained_model import TrainedModel
    from heedful.interventions.kinds import Intervention

INSIDE = "Inside the model"

Without = Annotated[
    list[str] | None,
    option(
        INSIDE,
        "--without",
        metavar="PART",
        help="Switch a part off, e.g. decoder.2.cross.head.3 or positions (all parts: heedful look MODEL --list); "
        "may be repeated.",
    ),
]
InterventionFile = Annotated[
    Path | None,
    option(
        INSIDE,
        "--interventions",
        metavar="FILE",
        help='JSON list of interventions, e.g. [{"kind": "scale", "part": "decoder.2.cross", "factor": 0.5}].',
    ),
]


def read_interventions(
    trained: TrainedModel, without: list[str] | None, file: Path | None
) -> tuple[Intervention, ...] | None:
    """The interventions that the options ask for, checked and printed; None if there are none."""
    if not without and file is None:
        return None
    from heedful.interventions.kinds import Ablate, describe, interventions_from_json
    from heedful.interventions.resolve import check_parts
    from heedful.untrusted_files import read_bounded

    interventions: list[Intervention] = [Ablate(part) for part in without or ()]
    if file is not None:
        try:
            content = read_bounded(file)
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror or error}") from None
        interventions += interventions_from_json(content, str(file))
    check_parts(trained.model, interventions)
    print_message(f"with {describe(interventions)}; by the model's own modules, not a faster backend")
    return tuple(interventions)
