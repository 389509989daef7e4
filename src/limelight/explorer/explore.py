"""`ll.explore`: the explorer from Python, and inside a notebook's cell."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from limelight.errors import OptionError
from limelight.explorer.model_store import ModelStore, installed_models
from limelight.explorer.server import ExplorerServer, serve
from limelight.fields import checked
from limelight.models.decoder import Decoder
from limelight.models.encoder import Encoder
from limelight.models.transformer import Transformer
from limelight.models.vision import VisionEncoder
from limelight.seeing.recording.recording import Recording

if TYPE_CHECKING:
    from limelight.models.loading.pretrained import Model


class Explorer:
    """A running explorer, which a notebook displays in a cell; `stop` ends it."""

    def __init__(self, server: ExplorerServer, height: int) -> None:
        self._server, self.height = server, height

    @property
    def url(self) -> str:
        """The address of the page."""
        return self._server.url

    def stop(self) -> None:
        """End the server."""
        self._server.stop()

    def _repr_html_(self) -> str:
        return (
            f'<iframe src="{escape(self.url)}" width="100%" height="{self.height}" '
            'style="border:0" title="Limelight explorer"></iframe>'
        )

    def __repr__(self) -> str:
        return f"Explorer at {self.url}"


@checked
def explore(
    what: Recording | Model | str | Path | None = None, *, port: int = 0, height: int = 900
) -> Explorer:
    """Open the explorer on a recording or a model, in the browser or in a notebook cell.

    Args:
        what: a recording to show; a model, its name or its path; the installed models unless
            given.
        port: of the server on this machine; any free port unless given.
        height: of the cell, in pixels.

    Returns:
        The running explorer, whose `url` a browser opens. It runs until `stop()` or until Python
        exits.
    """
    if isinstance(what, Recording):
        store = ModelStore([], what)
    elif isinstance(what, str | Path | Encoder | Decoder | Transformer | VisionEncoder):
        store = ModelStore([what])
    elif what is None:
        store = ModelStore(installed_models())
    else:
        raise OptionError(
            f"explore takes a Recording, a model, its name or path, found {type(what).__name__}"
        )
    return Explorer(serve(store, port=port, embeddable=True).start(), height)
