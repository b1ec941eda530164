"""heedful studio: open the page that shows a trained model at work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.decoding_options import MACHINE, option
from heedful.cli.serve import make_settings
from heedful.cli.standard_streams import print_message, write_output
from heedful.errors import UsageError


def studio(
    models: Annotated[
        list[Path] | None, typer.Argument(metavar="[MODEL]…", help="Model folders; none: train one in the page.")
    ] = None,
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the runs that the page starts and lists.")
    ] = Path(),
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Another folder with text to choose from; may be repeated."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 = any free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    device: Annotated[str, option(MACHINE, help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Open the studio: use a model, look inside, switch parts off, step through, train and compare, in the browser.

    Everything stays on this machine. Without a model, the page offers to train the demo while you watch.

    Examples:
      heedful studio translate-1
      heedful studio translate-1 recurrent-1
      heedful studio --data texts
    """
    import webbrowser

    from heedful.server.run_server import bind, run_server, url_of
    from heedful.studio.studio_app import ADDRESS, create_studio_app
    from heedful.studio.workspace import Workspace

    for path in (folder, *(data or ())):
        if not path.is_dir():
            raise UsageError(f"{path} is not a folder")
    workspace = Workspace(folder.absolute(), tuple(path.absolute() for path in data or ()))
    listener = bind("127.0.0.1", port)
    try:
        settings = make_settings("127.0.0.1", None, None)
        app = create_studio_app(models or [], settings, workspace=workspace, device=device, notice=print_message)
        address = url_of(listener) + ADDRESS

        def started() -> None:
            write_output(f"studio     {address}\nCtrl-C ends it; runs it has started continue.\n")
            if browser:
                webbrowser.open(address)

        run_server(app, listener, started)
    finally:
        listener.close()
