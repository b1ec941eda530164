"""The contenders of `decoding.py`: heedful with each engine, Hugging Face, CTranslate2 itself, and no KV cache.

All have the same weights: one random model, exported to the others' formats. No text ends by itself (the output never
favors END), so all generate the same number of tokens. A contender decodes one batch and returns its token count.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

Decode = Callable[[], int]
END = 3


class Cell(NamedTuple):
    """A model, and the work of one call: `rows` texts of `input_tokens`, `output_tokens` each."""

    name: str
    family: str  # "pairs" or "text"
    rows: int
    beam: int
    input_tokens: int
    output_tokens: int
    width: int
    heads: int
    layers: int
    vocabulary: int

    @property
    def tokens(self) -> int:
        """Tokens of the best hypotheses; those of other beams are not counted."""
        return self.rows * self.output_tokens

    def texts(self) -> list[list[int]]:
        generator = torch.Generator().manual_seed(0)
        size = (
            self.rows,
            self.input_tokens - 1 if self.family == "pairs" else self.input_tokens,
        )  # END follows a source
        return torch.randint(6, self.vocabulary, size, generator=generator).tolist()

    def model(self) -> Any:
        """The paper's encoder-decoder, or GPT-2, with random weights and a zero vector for END."""
        import heedful

        torch.manual_seed(0)
        size = {name: getattr(self, name) for name in ("width", "heads", "layers", "vocabulary")}
        design = {"position_layout": "halves"} if self.family == "pairs" else {}
        model = heedful.build("paper-base" if self.family == "pairs" else "gpt2", **size, **design).eval()
        with torch.no_grad():
            model.table.weight[END] = 0.0
        return model


def vocabulary(cell: Cell) -> list[list[str]]:
    from heedful.text.special_tokens import SPECIAL_TOKENS

    return [[*SPECIAL_TOKENS, *(f"w{token}" for token in range(6, cell.vocabulary))]]


# heedful ----------------------------------------------------------------------------------------------------------


def through_load(**options: Any) -> Callable[[Cell, Path, str], Decode]:
    """Text to text through `heedful.load`; every token is a word."""

    def make(cell: Cell, folder: Path, device: str) -> Decode:
        import heedful

        trained = heedful.load(folder / "heedful")
        texts = trained.tokenizers[0].decode(cell.texts())
        assert trained.tokenizers[0].encode(texts) == cell.texts(), "the texts are not those the others read"
        search: dict[str, Any] = {"beam": cell.beam, "max_length": cell.output_tokens, **options}
        if cell.family == "pairs":
            return lambda: sum(len(text.split()) for text in trained.translate(texts, **search))
        search |= {"temperature": 0.0}
        return lambda: sum(len(result.text.split()) for result in trained.iter_generate(texts, **search))

    return make


def cuda_graphs(cell: Cell, folder: Path, device: str) -> Decode:
    from heedful.generation.backends.backend import SearchRequest
    from heedful.generation.backends.cuda_graph_backend import CudaGraphDecoder
    from heedful.generation.backends.torch_backend import TorchBackend
    from heedful.generation.search.settings import SearchSettings

    backend = TorchBackend(CudaGraphDecoder(cell.model().to(device).bfloat16()), batch_tokens=10**9)
    run = backend.translate if cell.family == "pairs" else backend.generate
    texts, settings = cell.texts(), SearchSettings(beam=cell.beam, max_length=cell.output_tokens)
    return lambda: sum(len(best.tokens) for best, *_ in run(SearchRequest(texts, settings)))


def heedful_torch(cell: Cell, folder: Path, device: str) -> Decode:
    return (cuda_graphs if device == "cuda" else through_load(engine="torch"))(cell, folder, device)


# Others -----------------------------------------------------------------------------------------------------------


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
        options: dict[str, Any] = {"num_beams": cell.beam, "max_new_tokens": cell.output_tokens, "do_sample": False}
        if cache == "static":
            options |= {"cache_implementation": "static", "disable_compile": device == "cpu"}
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

        def generate() -> int:
            output = model.generate(**inputs, **options)
            return int((output[:, -cell.output_tokens :] != END).sum())

        return generate

    return make


def ctranslate2_itself(quantization: str) -> Callable[[Cell, Path, str], Decode]:
    """As in its documentation: default threads, one call."""

    def make(cell: Cell, folder: Path, device: str) -> Decode:
        import ctranslate2

        (tokens,) = vocabulary(cell)
        texts = [[tokens[token] for token in text] for text in cell.texts()]
        placement: dict[str, Any] = {"device": device, "compute_type": "bfloat16" if device == "cuda" else quantization}
        if cell.family == "pairs":
            translator = ctranslate2.Translator(str(folder / quantization), **placement)
            options: dict[str, Any] = {"beam_size": cell.beam, "max_decoding_length": cell.output_tokens}
            return lambda: sum(len(one.hypotheses[0]) for one in translator.translate_batch(texts, **options))
        generator = ctranslate2.Generator(str(folder / quantization), **placement)
        options = {"beam_size": cell.beam, "max_length": cell.output_tokens, "include_prompt_in_result": False}
        return lambda: sum(len(one.sequences[0]) for one in generator.generate_batch(texts, **options))

    return make


def without_cache(cell: Cell, folder: Path, device: str) -> Decode:
    """Every step reads the whole text again."""
    from heedful.generation.search.decoding_batch import masked_log_softmax

    model = cell.model().to(device)
    if device == "cuda":
        model = model.bfloat16()
    texts = [[*text, END] for text in cell.texts()] if cell.family == "pairs" else cell.texts()
    ids = torch.tensor(texts, device=device)

    @torch.inference_mode()
    def decode() -> int:
        memory = model.encode(ids) if cell.family == "pairs" else None
        tokens = torch.full((cell.rows, 1), 2, device=device) if cell.family == "pairs" else ids
        for _ in range(cell.output_tokens):
            states = model.states(tokens, memory) if memory else model.states(tokens)
            scores = masked_log_softmax(model.apply_head("next_token", states[:, -1:])[:, 0])
            tokens = torch.cat([tokens, scores.argmax(-1, keepdim=True)], 1)
        return int((tokens[:, -cell.output_tokens :] != END).sum())

    return decode


CONTENDERS: dict[str, Callable[[Cell, Path, str], Decode]] = {
    "heedful": through_load(),
    "heedful int8": through_load(int8=True),
    "heedful torch": heedful_torch,
    "hugging face": hugging_face("dynamic"),
    "hugging face static": hugging_face("static"),
    "ctranslate2": ctranslate2_itself("float32"),
    "ctranslate2 int8": ctranslate2_itself("int8"),
    "no cache": without_cache,
}


def contenders(cell: Cell, device: str) -> list[str]:
    """Those that support this cell: compiled ones for long texts only, CTranslate2 on a CPU only."""
    left_out = {"no cache"} if cell.beam > 1 or device == "cuda" else set()
    if device == "cuda":
        left_out |= {name for name in CONTENDERS if "ctranslate2" in name} | {"heedful", "heedful int8"}
        left_out |= {"hugging face static"} if cell.family == "pairs" else set()
    return [name for name in CONTENDERS if name not in left_out]


def save_with_tokenizer(cell: Cell, model: Any, folder: Path) -> None:
    """Save a model folder whose tokenizer maps every word to one token."""
    import heedful
    from heedful.text.tokenizer import Tokenizer, TokenizerConfig

    (tokens,) = vocabulary(cell)
    tokenizer = Tokenizer.train(tokens[6:], TokenizerConfig(kind="words", vocabulary=cell.vocabulary))
    tokenizer.save(heedful.save(model, folder) / "tokenizer.json")


def export(cell: Cell, folder: Path, device: str) -> None:
    """Write the cell's model in every format its contenders read."""
    from heedful.interop.ctranslate2_export import export_ctranslate2
    from heedful.interop.huggingface import choose_layout, export_model

    model = cell.model()
    special: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": END, "forced_eos_token_id": None}
    special |= {"decoder_start_token_id": 2, "suppress_tokens": None}
    export_model(model, folder / "huggingface", choose_layout(model), **special)
    if device == "cpu":
        save_with_tokenizer(cell, model, folder / "heedful")
        export_ctranslate2(model, folder / "float32", vocabulary(cell))
        export_ctranslate2(model, folder / "int8", vocabulary(cell), quantization="int8")
