"""heedful serve: serve trained models over HTTP."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heedful.cli import decoding_options as options
from heedful.cli.decoding_options import MACHINE, option
from heedful.cli.standard_streams import print_message, write_output
from heedful.errors import UsageError

if TYPE_CHECKING:
    from heedful.server.language_pairs import LanguagePair
    from heedful.server.model_registry import RegisteredModel
    from heedful.server.server_settings import ServerSettings

ACCESS, LIMITS, LOG = "Who may ask", "Limits", "Log"
TOKEN_VARIABLE = "HEEDFUL_TOKEN"
EXAMPLES = {
    "translate": ("translate", '{"text": "Good morning."}'),
    "generate": ("generate", '{"prompt": "Once upon a time", "max_length": 50}'),
    "classify": ("classify", '{"text": "A charming film."}'),
    "fill": ("fill", '{"text": "The [MASK] runs."}'),
    "answer": ("answer", '{"question": "Who runs?", "passage": "A dog runs."}'),
    "embed": ("embed", '{"text": "A dog runs."}'),
}


def serve(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL", help="Model folders, served under their names.")],
    host: Annotated[
        str, option(ACCESS, help="Address to listen on; other than this machine: needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, option(ACCESS, min=0, max=65535, help="Port; 0 = any free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        option(ACCESS, metavar="FILE", help=f"File with the token that requests must present; or {TOKEN_VARIABLE}."),
    ] = None,
    allow_host: Annotated[
        list[str] | None, option(ACCESS, metavar="NAME", help="Serve requests to this host name too; may be repeated.")
    ] = None,
    languages: Annotated[
        list[str] | None,
        option(ACCESS, metavar="NAME=en-de", help="Languages of a translator; default: from its training files."),
    ] = None,
    queue: Annotated[int, option(LIMITS, min=1, help="Maximum texts in the queue; beyond: 429.")] = 1024,
    deadline: Annotated[float, option(LIMITS, min=0.1, help="Seconds in which a request must be complete.")] = 60.0,
    max_body: Annotated[int, option(LIMITS, min=1_000, help="Bytes of a request.")] = 1 << 20,
    max_texts: Annotated[int, option(LIMITS, min=1, help="Texts of a request.")] = 256,
    max_characters: Annotated[int, option(LIMITS, min=1, help="Characters of a text.")] = 20_000,
    max_beam: Annotated[int, option(LIMITS, min=1, help="Beam size.")] = 16,
    max_tokens: Annotated[int, option(LIMITS, min=1, help="Tokens to generate for a text.")] = 1_024,
    drain: Annotated[float, option(LIMITS, min=0, help="Seconds for requests in flight when stopped.")] = 30.0,
    log_file: Annotated[Path | None, option(LOG, metavar="FILE", help="Access log; default: standard error.")] = None,
    log_texts: Annotated[bool, option(LOG, "--log-texts", help="Write the requests' texts into the log.")] = False,
    studio: Annotated[bool, option(MACHINE, "--studio", help="Serve the studio's page at /studio/ too.")] = False,
    int8: options.Int8 = False,
    device: Annotated[str, option(MACHINE, help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Serve models over HTTP, for our own, LibreTranslate's and OpenAI's clients.

    Every request is batched with those that arrive meanwhile. A model whose folder is replaced is loaded again. The
    interactive documentation is at /docs, metrics are at /metrics. SIGTERM answers what is in flight, then exits.

    Examples:
      heedful serve translate-1
      heedful serve translate-1 classify-1 --port 0 --log-file access.log
      heedful serve translate-1 --host 0.0.0.0 --token-file token.txt
    """
    from heedful.server.server_settings import RequestLimits

    limits = RequestLimits(
        body_bytes=max_body, texts=max_texts, characters=max_characters, beam=max_beam, tokens=max_tokens
    )
    settings = make_settings(host, token_file, allow_host).with_changes(
        limits=limits, queue=queue, deadline=deadline, drain=drain, log_file=log_file, log_texts=log_texts
    )
    from heedful.server.application import create_app
    from heedful.server.model_registry import served_name
    from heedful.server.run_server import bind, exempt_imports_from_collection, run_server, url_of
    from heedful.studio.studio_app import create_studio_app

    pairs = parse_languages(languages, [served_name(folder) for folder in models])
    listener = bind(host, port)
    exempt_imports_from_collection()
    try:
        create = create_studio_app if studio else create_app
        app = create(models, settings, device=device, int8=int8, languages=pairs, notice=print_message)
        served = list(app.state.serving.registry.served.values())
        url = url_of(listener)
        run_server(app, listener, lambda: write_output(introduction(url, served, settings)))
    finally:
        listener.close()


def make_settings(host: str, token_file: Path | None, allow_host: list[str] | None) -> ServerSettings:
    """The server's settings; only this machine, or clients that present the token, have access."""
    from heedful.server.server_settings import LOOPBACK_NAMES, MIN_TOKEN, ServerSettings, is_loopback

    token = read_token(token_file)
    if token is not None and len(token) < MIN_TOKEN:
        raise UsageError(f"the token has {len(token)} characters and needs {MIN_TOKEN}; {make_one()}")
    if token is None and not is_loopback(host):
        raise UsageError(
            f"--host {host} can be reached from other machines, which needs a token: --token-file FILE or "
            f"{TOKEN_VARIABLE}; {make_one()}"
        )
    if token is not None and not (token.isascii() and token.isprintable()):
        raise UsageError(f"the token must be one line of ASCII, which a header can hold; {make_one()}")
    names = tuple(name.lower() for name in allow_host or ())
    hosts = (*LOOPBACK_NAMES, *names) if is_loopback(host) or names else None
    return ServerSettings(token=token, hosts=hosts)


def make_one() -> str:
    return 'make one: (umask 077; python -c "import secrets; print(secrets.token_urlsafe(32))" > token.txt)'


def read_token(file: Path | None) -> str | None:
    """The token in a file or the environment; never an argument, which every user of the machine could read."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        token = file.read_text(encoding="utf-8").strip()
        is_public = bool(file.stat().st_mode & stat.S_IROTH)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read as a token: {getattr(error, 'strerror', 'it is not text')}") from None
    if not token:
        raise UsageError(f"{file} is empty; {make_one()}")
    if is_public:
        print_message(f"every user of this machine can read {file}: chmod 600 {file}")
    return token


def parse_languages(languages: list[str] | None, names: list[str]) -> dict[str, LanguagePair]:
    """`NAME=en-de`, or `en-de` if there is one model."""
    from heedful.errors import nearest
    from heedful.server.language_pairs import parse_pair

    pairs: dict[str, LanguagePair] = {}
    for entry in languages or ():
        name, _, pair = entry.rpartition("=")
        if not name and len(names) > 1:
            raise UsageError(f"--languages {entry}: which model? write NAME={entry}")
        name = name or names[0]
        if name not in names:
            raise UsageError(f"--languages {entry}: no model '{name}' is served; {nearest(name, names)}")
        pairs[name] = parse_pair(pair)
    return pairs


def introduction(url: str, served: list[RegisteredModel], settings: ServerSettings) -> str:
    """The message at start-up: the models, the address, and three requests to try."""
    listed = ", ".join(f"{model.name} ({model.trained.kind}{_pair(model)})" for model in served)
    token = '-H "Authorization: Bearer $TOKEN" ' if settings.token else ""
    post = f"curl -s {token}-H 'Content-Type: application/json'"
    path, body = EXAMPLES[served[0].task]
    body = body.replace("{", f'{{"model": "{served[0].name}", ', 1)
    lines = [
        f"serving    {listed}",
        f"address    {url}    documentation {url}/docs",
        f"try        {post} {url}/api/v1/{path} -d '{body}'",
        f'           {post} {url}/api/v1/look -d \'{{"model": "{served[0].name}", "text": "A dog runs."}}\'',
        f"           curl -s {token}{url}/api/v1/models",
    ]
    return "\n".join(lines) + "\n"


def _pair(served: RegisteredModel) -> str:
    return f", {served.languages}" if served.languages else ""
