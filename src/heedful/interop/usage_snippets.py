"""Python that loads an exported folder with its library, ready to paste: what `heedful export` prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

from heedful.inference.classifier import Classifier
from heedful.inference.question_answerer import QuestionAnswerer
from heedful.inference.trained_model import TrainedModel
from heedful.interop.conversion import VECTORS
from heedful.interop.huggingface_custom import has_code
from heedful.model_files import TARGET_TOKENIZER_FILE, TOKENIZER_FILE
from heedful.model_folder import HUGGINGFACE_TARGET

EXAMPLE = "Your text here."


def usage_snippet(trained: TrainedModel, to: str, folder: Path) -> str:
    """Return the code for a model exported `to` this folder; empty if it has no tokenizer to read text with."""
    if to == "word2vec":
        return _word2vec(folder / VECTORS)
    if not trained.tokenizers:
        return ""
    snippets: dict[str, Callable[[TrainedModel, Path], str]] = {"ctranslate2": _ctranslate2, "onnx": _onnx}
    return dedent(snippets.get(to, _huggingface)(trained, folder)).strip() + "\n"


def _huggingface(trained: TrainedModel, folder: Path) -> str:
    trust = ", trust_remote_code=True" if has_code(folder) else ""
    snippets = {
        "translate": _huggingface_translate,
        "generate": _huggingface_generate,
        "classify": _huggingface_classify,
        "fill": _huggingface_fill,
        "answer": _huggingface_answer,
    }
    return snippets.get(trained.task, _huggingface_embed)(trained, f"{str(folder)!r}{trust}", folder)


def _huggingface_translate(trained: TrainedModel, source: str, folder: Path) -> str:
    target = folder / HUGGINGFACE_TARGET
    limit = ""
    if not has_code(folder):
        limit = f", max_new_tokens=min(2 * batch.input_ids.shape[1] + 20, {trained.model.config.max_length - 1})"
    other = f"\n        tokenizer = AutoTokenizer.from_pretrained({str(target)!r})" if target.is_dir() else ""
    return f"""
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained({source})
        model = AutoModelForSeq2SeqLM.from_pretrained({source})
        batch = tokenizer([{EXAMPLE!r}], padding=True, return_tensors="pt")
        output = model.generate(**batch{limit}){other}
        print(tokenizer.batch_decode(output, skip_special_tokens=True))
    """


def _huggingface_generate(trained: TrainedModel, source: str, folder: Path) -> str:
    return f"""
        from transformers import pipeline

        generate = pipeline("text-generation", {source})
        print(generate({EXAMPLE!r}, max_new_tokens=30)[0]["generated_text"])
    """


def _huggingface_fill(trained: TrainedModel, source: str, folder: Path) -> str:
    return f"""
        from transformers import pipeline

        fill = pipeline("fill-mask", {source})
        print(fill(f"Your {{fill.tokenizer.mask_token}} here."))
    """


def _huggingface_classify(trained: TrainedModel, source: str, folder: Path) -> str:
    assert isinstance(trained, Classifier)
    settings = trained.settings
    texts = ", ".join([f"[{EXAMPLE!r}]"] * settings.texts_per_example)
    activation = "sigmoid()" if settings.multi_label else "softmax(-1)"
    return f"""
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained({source})
        model = AutoModelForSequenceClassification.from_pretrained({source})
        batch = tokenizer({texts}, padding=True, truncation=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**batch).logits
        for row in logits.{activation}.tolist():
            print({{model.config.id2label[index]: probability for index, probability in enumerate(row)}})
    """


def _huggingface_answer(trained: TrainedModel, source: str, folder: Path) -> str:
    assert isinstance(trained, QuestionAnswerer)
    settings = trained.settings
    threshold = "-torch.inf" if settings.threshold is None else f"{settings.threshold:.4g}"
    return f"""
        import torch
        from transformers import AutoModelForQuestionAnswering, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained({source})
        model = AutoModelForQuestionAnswering.from_pretrained({source})
        question, passage = "Who wrote the letter?", "The letter was written by Ada in 1843."
        batch = tokenizer(
            question, passage, truncation="only_second", return_tensors="pt", return_offsets_mapping=True
        )
        offsets = batch.pop("offset_mapping")[0].tolist()
        is_passage = torch.tensor([part == 1 for part in batch.sequence_ids()])
        with torch.no_grad():
            output = model(**batch)
        start, end = output.start_logits[0], output.end_logits[0]
        spans = (is_passage[:, None] & is_passage).triu().tril({settings.max_answer_tokens - 1})
        scores = (start[:, None] + end - start[0] - end[0]).masked_fill(~spans, -torch.inf)
        first, last = divmod(int(scores.argmax()), len(offsets))
        answer = passage[offsets[first][0] : offsets[last][1]].strip()
        print(answer if scores.max() >= {threshold} else "no answer")
    """


def _huggingface_embed(trained: TrainedModel, source: str, folder: Path) -> str:
    return f"""
        import torch
        from transformers import AutoModel, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained({source})
        model = AutoModel.from_pretrained({source})
        batch = tokenizer([{EXAMPLE!r}], padding=True, truncation=True, return_tensors="pt")
        with torch.no_grad():
            states = model(**batch).last_hidden_state
        real = batch.attention_mask[..., None]
        print((states * real).sum(1) / real.sum(1))
    """


def _ctranslate2(trained: TrainedModel, folder: Path) -> str:
    read = _read_tokenizer(folder)
    if trained.model.config.family == "decoder":
        return f"""
        import ctranslate2
        from tokenizers import Tokenizer

        {read}
        generator = ctranslate2.Generator({str(folder)!r})
        result = generator.generate_batch([tokens], max_length=30, include_prompt_in_result=False)[0]
        print(tokenizer.decode(result.sequences_ids[0]))
    """
    target = _target_tokenizer(trained, folder)
    return f"""
        import ctranslate2
        from tokenizers import Tokenizer

        {read}
        translator = ctranslate2.Translator({str(folder)!r})
        result = translator.translate_batch([tokens], beam_size=4, max_decoding_length=2 * len(tokens) + 22)[0]{target}
        print(tokenizer.decode([tokenizer.token_to_id(token) for token in result.hypotheses[0]]))
    """


def _onnx(trained: TrainedModel, folder: Path) -> str:
    read, file = _read_tokenizer(folder, ids=True), str(folder / "model.onnx")
    if trained.model.config.family == "decoder":
        return f"""
        import numpy as np
        import onnxruntime
        from tokenizers import Tokenizer

        {read}
        model = onnxruntime.InferenceSession({file!r})
        while len(ids) < 60 and ids[-1] != 3:  # END
            logits = model.run(None, {{"tokens": np.array([ids])}})[0][0, -1]
            ids.append(3 + int(logits[3:].argmax()))
        print(tokenizer.decode(ids))
    """
    if trained.model.config.family == "encoder_decoder":
        encoder, decoder = str(folder / "encoder.onnx"), str(folder / "decoder.onnx")
        return f"""
        import numpy as np
        import onnxruntime
        from tokenizers import Tokenizer

        {read}
        encoder = onnxruntime.InferenceSession({encoder!r})
        decoder = onnxruntime.InferenceSession({decoder!r})
        source, target = np.array([[*ids, 3]]), [2]  # END, START
        memory = {{"lengths": np.array([source.shape[1]])}}
        memory["states"] = encoder.run(None, {{"tokens": source, **memory}})[0]
        while len(target) <= 2 * source.shape[1] + 20 and target[-1] != 3:
            logits = decoder.run(None, {{"tokens": np.array([target]), **memory}})[0][0, -1]
            target.append(3 + int(logits[3:].argmax())){_target_tokenizer(trained, folder)}
        print(tokenizer.decode(target))
    """
    start, end = trained.template.start, trained.template.end
    return f"""
        import numpy as np
        import onnxruntime
        from tokenizers import Tokenizer

        {read}
        model = onnxruntime.InferenceSession({file!r})
        tokens = np.array([[{start}, *ids, {end}]])
        outputs = model.run(None, {{"tokens": tokens, "lengths": np.array([tokens.shape[1]])}})
        for output, values in zip(model.get_outputs(), outputs, strict=True):
            print(output.name, values.shape)
    """


def _read_tokenizer(folder: Path, *, ids: bool = False) -> str:
    """Lines that tokenize the example."""
    path, names = str(folder / TOKENIZER_FILE), "ids" if ids else "tokens"
    return f"""tokenizer = Tokenizer.from_file({path!r})
        {names} = tokenizer.encode({EXAMPLE!r}, add_special_tokens=False).{names}"""


def _target_tokenizer(trained: TrainedModel, folder: Path) -> str:
    """A line that loads the tokenizer of the target, where it has its own."""
    path = str(folder / TARGET_TOKENIZER_FILE)
    return f"\n        tokenizer = Tokenizer.from_file({path!r})" if len(trained.tokenizers) > 1 else ""


def _word2vec(file: Path) -> str:
    return dedent(f"""
        import numpy as np

        with open({str(file)!r}, encoding="utf-8") as lines:
            count, width = map(int, next(lines).split())
            rows = [line.split() for line in lines]
        vectors = {{word: np.array(numbers, np.float32) for word, *numbers in rows}}
        print(count, "words, first:", next(iter(vectors)))
    """).lstrip()
