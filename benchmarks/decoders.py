"""Who writes in `decoding.py`: heedful by each engine, Hugging Face, CTranslate2 itself, and a loop without a cache.

All have the same weights: one random model of ours, which goes to the others through `heedful export`. No text ends by
itself (the output never favours END), so all write the same number of tokens. A contender is a function that
decodes one batch once and gives back how many tokens it wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

Decode = Callable[[], int]
END = 3


class Cell(NamedTuple):
    """A model, and the work of one call: `rows` texts of `read` tokens, `wrote` tokens each."""

    name: str
    family: str  # "pairs" or "text"
    rows: int
    beam: int
    read: int
    wrote: int
    width: int
    heads: int
    layers: int
    vocabulary: int

    @property
    def tokens(self) -> int:
        """Of the texts kept: what the losing beams wrote is not counted."""
        return self.rows * self.wrote

    def texts(self) -> list[list[int]]:
        generator = torch.Generator().manual_seed(0)
        size = (self.rows, self.read - 1 if self.family == "pairs" else self.read)  # END follows a source
        return torch.randint(6, self.vocabulary, size, generator=generator).tolist()

    def model(self) -> Any:
        """The paper's encoder-decoder, or GPT-2, with random weights and a vector of nothing for END."""
        import heedful

        torch.manual_seed(0)
        size = {name: getattr(self, name) for name in ("width", "heads", "layers", "vocabulary")}
        design = {"position_layout": "halves"} if self.family == "pairs" else {}
        model = heedful.build("paper-base" if self.family == "pairs" else "gpt2", **size, **design).eval()
        with torch.no_grad():
            model.table.weight[END] = 0.0
        return model


def names(cell: Cell) -> list[list[str]]:
    from heedful.text.special_tokens import SPECIAL_TOKENS

    return [[*SPECIAL_TOKENS, *(f"w{token}" for token in range(6, cell.vocabulary))]]


# Ours ----------------------------------------------------------------------------------------------------------------


def as_asked(**how: Any) -> Callable[[Cell, Path, str], Decode]:
    """As a person has it from Python: texts in, texts out, from a model folder; tokens are words here."""

    def make(cell: Cell, folder: Path, device: str) -> Decode:
        import heedful

        trained = heedful.load(folder / "heedful")
        texts = trained.tokenizers[0].decode(cell.texts())
        assert trained.tokenizers[0].encode(texts) == cell.texts(), "the texts are not those the others read"
        options: dict[str, Any] = {"beam": cell.beam, "max_length": cell.wrote, **how}
        if cell.family == "pairs":
            return lambda: sum(len(text.split()) for text in trained.translate(texts, **options))
        options |= {"temperature": 0.0}
        return lambda: sum(len(answer.text.split()) for answer in trained.iter_generate(texts, **options))

    return make


def on_a_gpu(cell: Cell, folder: Path, device: str) -> Decode:
    from heedful.generation.backends.cuda_graph import CudaGraphDecoder
    from heedful.generation.continuation import generate_ids
    from heedful.generation.sequence_to_sequence import translate_ids

    model, texts = CudaGraphDecoder(cell.model().to(device).bfloat16()), cell.texts()

    def write() -> int:
        if cell.family == "pairs":
            at_most = [cell.wrote] * cell.rows
            found = translate_ids(model, texts, beam=cell.beam, at_most=at_most, tokens=10**9)
        else:
            found = generate_ids(model, texts, limit=cell.wrote, beam=cell.beam, tokens=10**9)
        return sum(len(each[0].tokens) for each in found)

    return write


def by_torch(cell: Cell, folder: Path, device: str) -> Decode:
    return (on_a_gpu if device == "cuda" else as_asked(engine="torch"))(cell, folder, device)


# Theirs --------------------------------------------------------------------------------------------------------------


def hugging_face(cache: str) -> Callable[[Cell, Path, str], Decode]:
    def make(cell: Cell, folder: Path, device: str) -> Decode:
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        kind = "AutoModelForSeq2SeqLM" if cell.family == "pairs" else "AutoModelForCausalLM"
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        model = getattr(transformers, kind).from_pretrained(folder / "huggingface", dtype=dtype).to(device).eval()
        texts = [[*text, END] for text in cell.texts()] if cell.family == "pairs" else cell.texts()
        ids = torch.tensor(texts, device=device)
        options: dict[str, Any] = {"num_beams": cell.beam, "max_new_tokens": cell.wrote, "do_sample": False}
        if cache == "static":
            options |= {"cache_implementation": "static", "disable_compile": device == "cpu"}
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

        def generate() -> int:
            found = model.generate(**given, **options)
            return int((found[:, -cell.wrote :] != END).sum())

        return generate

    return make


def ctranslate2_itself(quantisation: str) -> Callable[[Cell, Path, str], Decode]:
    """As its documentation shows it: default threads, one call."""

    def make(cell: Cell, folder: Path, device: str) -> Decode:
        import ctranslate2

        (spelling,) = names(cell)
        texts = [[spelling[token] for token in text] for text in cell.texts()]
        where: dict[str, Any] = {"device": device, "compute_type": "bfloat16" if device == "cuda" else quantisation}
        if cell.family == "pairs":
            translator = ctranslate2.Translator(str(folder / quantisation), **where)
            options: dict[str, Any] = {"beam_size": cell.beam, "max_decoding_length": cell.wrote}
            return lambda: sum(len(one.hypotheses[0]) for one in translator.translate_batch(texts, **options))
        generator = ctranslate2.Generator(str(folder / quantisation), **where)
        options = {"beam_size": cell.beam, "max_length": cell.wrote, "include_prompt_in_result": False}
        return lambda: sum(len(one.sequences[0]) for one in generator.generate_batch(texts, **options))

    return make


def without_cache(cell: Cell, folder: Path, device: str) -> Decode:
    """Every step reads everything written so far again."""
    from heedful.generation.search.decode_loop import masked_log_softmax

    model = cell.model().to(device)
    if device == "cuda":
        model = model.bfloat16()
    texts = [[*text, END] for text in cell.texts()] if cell.family == "pairs" else cell.texts()
    ids = torch.tensor(texts, device=device)

    @torch.inference_mode()
    def write() -> int:
        memory = model.encode(ids) if cell.family == "pairs" else None
        tokens = torch.full((cell.rows, 1), 2, device=device) if cell.family == "pairs" else ids
        for _ in range(cell.wrote):
            states = model.states(tokens, memory) if memory else model.states(tokens)
            scores = masked_log_softmax(model.apply_head("next_token", states[:, -1:])[:, 0])
            tokens = torch.cat([tokens, scores.argmax(-1, keepdim=True)], 1)
        return int((tokens[:, -cell.wrote :] != END).sum())

    return write


CONTENDERS: dict[str, Callable[[Cell, Path, str], Decode]] = {
    "heedful": as_asked(),
    "heedful int8": as_asked(int8=True),
    "heedful torch": by_torch,
    "hugging face": hugging_face("dynamic"),
    "hugging face static": hugging_face("static"),
    "ctranslate2": ctranslate2_itself("float32"),
    "ctranslate2 int8": ctranslate2_itself("int8"),
    "no cache": without_cache,
}


def contenders(cell: Cell, device: str) -> list[str]:
    """Those that can do this cell; what compiles is asked for long texts only, and CTranslate2 on a CPU only."""
    left_out = {"no cache"} if cell.beam > 1 or device == "cuda" else set()
    if device == "cuda":
        left_out |= {name for name in CONTENDERS if "ctranslate2" in name} | {"heedful", "heedful int8"}
        left_out |= {"hugging face static"} if cell.family == "pairs" else set()
    return [name for name in CONTENDERS if name not in left_out]


def keep(cell: Cell, model: Any, folder: Path) -> None:
    """As `heedful train` would: the model and its tokenizer, which knows every word by the token it is."""
    import heedful
    from heedful.text.tokenizer import Tokenizer, TokenizerConfig

    (spelling,) = names(cell)
    tokenizer = Tokenizer.train(spelling[6:], TokenizerConfig(kind="words", vocabulary=cell.vocabulary))
    tokenizer.save(heedful.save(model, folder) / "tokenizer.json")


def export(cell: Cell, folder: Path, device: str) -> None:
    """The cell's model in every form its contenders read."""
    from heedful.interop.ctranslate2_export import export_ctranslate2
    from heedful.interop.huggingface import choose_layout, export_model
    from heedful.text.special_tokens import NEVER_GENERATED

    model = cell.model()
    special: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": END, "forced_eos_token_id": None}
    special |= {"decoder_start_token_id": 2, "suppress_tokens": None}
    export_model(model, folder / "huggingface", choose_layout(model), **special)
    if device == "cpu":
        keep(cell, model, folder / "heedful")
        export_ctranslate2(model, folder / "float32", names(cell), suppressed=NEVER_GENERATED)
        export_ctranslate2(model, folder / "int8", names(cell), quantisation="int8", suppressed=NEVER_GENERATED)
