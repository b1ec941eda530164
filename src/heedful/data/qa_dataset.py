"""Questions and passages as stores of windows: every window is an example, with where the answer stands in it (T5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.data.corpus_readers import Files, is_held_out, size_on_disk, usable
from heedful.data.dataset_preparation import learn_tokenizer
from heedful.data.dataset_writer import KEPT_TEXTS, Part, Prepared, finish, named_store, new_parts, opened
from heedful.data.line_reader import Fault, OnBadLine, Watch, drop
from heedful.data.passage_windows import Passage, Windows
from heedful.data.qa_reader import Question, scan_questions
from heedful.data.stage_progress import Stages, unseen
from heedful.data.token_store import is_whole, new_store
from heedful.errors import DataError
from heedful.text.special_token_template import Frame
from heedful.text.tokenizer import Tokenizer, TokenizerConfig

SIDES = ("windows", "places")


def read_questions(
    files: Files,
    *,
    on_bad_line: OnBadLine = "fail",
    dropped: Counter[str] | None = None,
    watch: Watch | None = None,
) -> Iterator[Question]:
    """The usable questions; what is left out is counted in `dropped`."""
    yield from usable("question", files, scan_questions(files, watch=watch), on_bad_line, dropped)


def learn_from_questions(
    files: Sequence[Path],
    config: TokenizerConfig,
    *,
    share: float,
    held_out: float,
    on_bad_line: OnBadLine = "fail",
    stages: Stages = unseen,
) -> Tokenizer:
    """A tokenizer for questions and passages, each passage once. What is held out is not read."""

    def texts(watch: Watch) -> Iterator[str]:
        passage = ""
        for asked in read_questions(files, on_bad_line=on_bad_line, watch=watch):
            if not is_held_out(asked.passage, held_out):
                if asked.passage != passage:
                    yield (passage := asked.passage)
                yield asked.question

    return learn_tokenizer(texts, files, config, share, stages)


def prepare_questions(
    train: Sequence[Path],
    valid: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    held_out: float,
    windows: Windows,
    on_bad_line: OnBadLine = "fail",
    stages: Stages = unseen,
) -> Prepared:
    """Stores of windows. Without validation files, a share of the passages is held out by hash, with all that is asked
    about them."""
    how = {"kind": "questions", "split": [len(train), held_out], **windows.model_dump()}
    folder = named_store([*train, *valid], (tokenizer,), **how)

    def part(asked: Question) -> str:
        return "valid" if not valid and is_held_out(asked.passage, held_out) else "train"

    if not is_whole(folder):
        with (
            new_store(folder) as aside,
            new_parts(aside, {"windows": len(tokenizer), "places": windows.longest}) as parts,
            stages("encoding", size_on_disk([*train, *valid])) as watch,
        ):
            encoder = _Encoder(tokenizer, windows, on_bad_line)
            for asked in read_questions(train, on_bad_line=on_bad_line, dropped=encoder.dropped, watch=watch):
                encoder.write(asked, parts[part(asked)])
            dropped, first = +encoder.dropped, dict(encoder.first)
            if valid:
                for asked in read_questions(valid, on_bad_line=on_bad_line, watch=watch):
                    encoder.write(asked, parts["valid"])
            finish(aside, parts, dropped, first)
    return opened(folder, (tokenizer,), SIDES)


class _Encoder:
    """Cuts questions and passages into windows; a passage that comes back is not read again."""

    def __init__(self, tokenizer: Tokenizer, windows: Windows, on_bad_line: OnBadLine) -> None:
        self.tokenizer, self.windows, self.on_bad_line = tokenizer, windows, on_bad_line
        self.frame = Frame.of(tokenizer)
        self.passage = Passage("", [], [], [])
        self.dropped: Counter[str] = Counter()
        self.first: dict[str, int] = {}

    def write(self, asked: Question, part: Part) -> None:
        """Every window as an example of the part. What does not fit stops the work, or is left out and counted."""
        if asked.passage != self.passage.text:
            self.passage = Passage.read(asked.passage, self.tokenizer)
            part.measure(asked.passage)
        passage, tokens = self.passage, self.tokenizer.encode([asked.question])[0]
        try:
            cuts = self.windows.cut(len(tokens), len(passage))
            span = None
            if asked.answers:
                text, start = asked.answers[0]
                span = passage.tokens_of(start, start + len(text))
        except DataError as error:
            drop(
                Fault("malformed", asked.path, asked.line, f"question {asked.id!r:.40}: {error}"),
                self.on_bad_line,
                None,
            )
            reason = f"questions that cannot be read in windows of {self.windows.longest} tokens"
            self.dropped[reason] += 1
            self.first.setdefault(reason, asked.line)
            return
        windows, places = part.sides
        begins = len(tokens) + 2
        for window in cuts:
            windows.write(self.frame.around(tokens, passage.tokens[window.first : window.last]))
            windows.end()
            places.write([begins, *window.label(span, begins)])
            places.end()
        part.size["examples"] += 1
        if len(part.texts) < KEPT_TEXTS:
            part.texts.append((asked.question, asked.passage, *(answer.text for answer in asked.answers)))
