"""heedful translate: translate lines of text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from heedful.cli import decoding_options as options
from heedful.cli.decoding_options import SAMPLING, SEARCH, option
from heedful.cli.intervention_options import InterventionFile, Without, read_interventions
from heedful.cli.standard_streams import print_message
from heedful.cli.text_io import LineStream

if TYPE_CHECKING:
    from heedful.generation.results import Translation

TERMS = "Terminology and alignment"


def translate(
    model: options.Model,
    text: options.Texts = None,
    input_: options.Input = None,
    output: options.Output = None,
    as_json: options.AsJson = False,
    beam: Annotated[int | None, option(SEARCH, show_default="4", help="Beam size; 1 = greedy search.")] = None,
    length_penalty: options.LengthPenalty = 1.0,
    n_best: options.NBest = 1,
    temperature: Annotated[float, option(SAMPLING, help="Above 0: sample instead of searching.")] = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    seed: options.Seed = 0,
    min_length: options.MinLength = 0,
    max_length: Annotated[
        int | None, option(SEARCH, show_default="twice the source's, plus 20", help="Maximum length in tokens.")
    ] = None,
    stop: options.Stop = None,
    prefix: Annotated[str, option(SEARCH, metavar="TEXT", help="Start every translation with this text.")] = "",
    forbid: options.Forbidden = None,
    glossary: Annotated[
        Path | None, option(TERMS, metavar="FILE", help="Required terms: lines of source term, tab, target term.")
    ] = None,
    keep: Annotated[bool, option(TERMS, help="Copy placeholders, tags, URLs and e-mail addresses unchanged.")] = True,
    alignments: Annotated[
        bool, option(TERMS, "--alignments", help="Append word alignments: ||| 0-0 1-2 (source-target, from 0).")
    ] = False,
    exact: options.Exact = False,
    engine: options.Engine = "auto",
    int8: options.Int8 = False,
    without: Without = None,
    interventions: InterventionFile = None,
    on_bad_line: options.SkipBad = "fail",
    device: options.Device = "auto",
) -> None:
    """Translate TEXT, or lines of standard input or a file: one line out for each line in.

    Examples:
      heedful translate translate-1 "A man rides a bicycle."
      heedful translate translate-1 --beam 8 < in.en > out.de
      heedful translate translate-1 "A man rides." --without decoder.1.cross.head.0
    """
    from heedful import Translator
    from heedful.loading import load_as

    lines = LineStream(text, input_, output, on_bad_line)
    translator = load_as(Translator, model, device=device)
    changes = read_interventions(translator, without, interventions)
    if alignments and translator.alignment is None and translator.aligned_head is not None:
        print_message(f"{model} has no alignment.json: aligned by the second-to-last layer's mean attention")
    with lines:
        for translation in translator.iter_translate(
            lines, beam=beam, length_penalty=length_penalty, n_best=n_best, temperature=temperature, top_k=top_k,
            top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed, min_length=min_length,
            max_length=max_length, stop=stop or (), prefix=prefix, forbidden=forbid or (),
            glossary=None if glossary is None else str(glossary), keep=keep, alignments=alignments,
            word_probabilities=as_json, exact=exact, engine=engine, int8=int8,
            interventions=changes,
        ):  # fmt: skip
            lines.write(translation.to_json() if as_json else plain(translation), translation.warnings)


def plain(translation: Translation) -> str:
    """The translation, or tab-separated n-best translations, and the word alignment if there is one."""
    text = translation.text
    if translation.alternatives:
        text = "\t".join(candidate.text.replace("\t", " ") for candidate in (translation, *translation.alternatives))
    if translation.alignment is None:
        return text
    return f"{text} ||| {' '.join(f'{source}-{target}' for source, target in translation.alignment)}"
