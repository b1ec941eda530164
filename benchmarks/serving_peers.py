"""Servers that `serving.py` compares with `heedful serve`: what one writes oneself around a model in an afternoon.

    python benchmarks/serving_peers.py ctranslate2|huggingface|litserve MODEL_FOLDER PORT BEAM DEVICE [int8]

Each answers POST /translate {"text": …} with {"text": …}. Hugging Face's models have random weights of the same shape
and generate exactly as many tokens as the source has; they would otherwise run to their limit.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import litserve
import torch

MAX_BATCH, WAIT_SECONDS = 32, 0.005


def translate_by_ctranslate2(folder: str, beam: int, device: str, int8: bool) -> Any:
    """Batches through one translator with two workers of one thread each."""
    import ctranslate2

    import heedful

    trained: Any = heedful.load(folder, device="cpu")
    converted = tempfile.mkdtemp()
    quantization = "int8" if int8 else "float32"
    trained.export("ctranslate2", Path(converted) / "model", quantization=quantization)
    threads = {"inter_threads": 2, "intra_threads": 1}
    translator = ctranslate2.Translator(f"{converted}/model", device=device, **threads)
    source, target = trained.tokenizers[0], trained.tokenizers[-1]
    names, ids = source.tokens, {name: token for token, name in enumerate(target.tokens)}

    def translate(texts: list[str]) -> list[str]:
        batch = [[names[token] for token in row] for row in source.encode(texts)]
        limit = 2 * max(map(len, batch)) + 20
        results = translator.translate_batch(batch, beam_size=beam, max_decoding_length=limit, max_input_length=0)
        return target.decode([[ids[name] for name in result.hypotheses[0]] for result in results])

    return translate


def translate_by_huggingface(folder: str, beam: int, device: str, _: bool) -> Any:
    """Batches through `generate` of a Marian model of the same shape."""
    from transformers import MarianConfig, MarianMTModel

    import heedful

    trained: Any = heedful.load(folder, device="cpu")
    config, tokenizer = trained.model.config, trained.tokenizer
    torch.manual_seed(0)
    layers, wide = config.layers, config.resolved()["feed_forward"]
    shape = {"d_model": config.width, "vocab_size": config.vocabulary, "max_position_embeddings": 1024}
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": layers, f"{side}_attention_heads": config.heads, f"{side}_ffn_dim": wide}
    special = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 2, "forced_eos_token_id": None}
    model = MarianMTModel(MarianConfig(**shape, **special)).eval().to(device)

    @torch.inference_mode()
    def translate(texts: list[str]) -> list[str]:
        rows = [[*tokens, 3] for tokens in tokenizer.encode(texts)]
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=device)
        options = {"num_beams": beam, "do_sample": False, "min_new_tokens": longest, "max_new_tokens": longest}
        generated = model.generate(tokens, attention_mask=tokens != 0, **options)
        return tokenizer.decode([row[1 : len(source)].tolist() for row, source in zip(generated, rows, strict=True)])

    return translate


def fastapi_app(translate: Any, *, batched: bool) -> Any:
    """A FastAPI app; `batched`: up to `MAX_BATCH` texts, or those that came within `WAIT_SECONDS`, are one call."""
    from fastapi import FastAPI

    app, pool = FastAPI(), ThreadPoolExecutor(2 if batched else 1)
    queue: asyncio.Queue[tuple[str, asyncio.Future[str]]] = asyncio.Queue()

    async def run(batch: list[tuple[str, asyncio.Future[str]]]) -> None:
        loop = asyncio.get_running_loop()
        texts = await loop.run_in_executor(pool, translate, [text for text, _ in batch])
        for (_, future), text in zip(batch, texts, strict=True):
            future.set_result(text)

    async def collect() -> None:
        slots = asyncio.Semaphore(2)
        while True:
            await slots.acquire()
            batch = [await queue.get()]
            deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
            while len(batch) < MAX_BATCH:
                left = deadline - asyncio.get_running_loop().time()
                try:
                    batch.append(await asyncio.wait_for(queue.get(), left) if left > 0 else queue.get_nowait())
                except (TimeoutError, asyncio.QueueEmpty):
                    break
            task = asyncio.create_task(run(batch))
            task.add_done_callback(lambda _: slots.release())

    @app.post("/translate")
    async def answer(body: dict[str, str]) -> dict[str, str]:
        if not batched:
            (text,) = await asyncio.get_running_loop().run_in_executor(pool, translate, [body["text"]])
            return {"text": text}
        if not getattr(app.state, "collector", None):
            app.state.collector = asyncio.create_task(collect())
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await queue.put((body["text"], future))
        return {"text": await future}

    return app


class Translation(litserve.LitAPI):  # type: ignore[misc]
    """LitServe's own batching around Hugging Face's `generate`."""

    folder, beam = "", 1

    def setup(self, device: str) -> None:
        self.translate = translate_by_huggingface(self.folder, self.beam, device, False)

    def decode_request(self, request: dict[str, str]) -> str:
        return request["text"]

    def predict(self, texts: list[str]) -> list[str]:
        return self.translate(texts)  # type: ignore[no-any-return]

    def encode_response(self, text: str) -> dict[str, str]:
        return {"text": text}


def serve_litserve(folder: str, beam: int, port: int, device: str) -> None:
    api = Translation(max_batch_size=MAX_BATCH, batch_timeout=WAIT_SECONDS, api_path="/translate")
    api.folder, api.beam = folder, beam
    server = litserve.LitServer(api, accelerator=device, workers_per_device=1)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="error", access_log=False)


def main() -> None:
    peer, folder, port, beam, device = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    if peer == "litserve":
        serve_litserve(folder, beam, port, device)
        return
    import uvicorn

    make = translate_by_ctranslate2 if peer == "ctranslate2" else translate_by_huggingface
    app = fastapi_app(make(folder, beam, device, "int8" in sys.argv), batched=peer == "ctranslate2")
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


if __name__ == "__main__":
    main()
