"""`wattfront front JOB --plot FILE`: the front as a picture, drawn here or by the server that is asked."""

from __future__ import annotations

from pathlib import Path

from api.errors import UsageError
from api.place import Place
from api.plot.render import Form
from api.plot.theme import Scheme

_FORMS: dict[str, Form] = {".png": "png", ".svg": "svg"}


def write_picture(place: Place, job: str, path: Path, scheme: Scheme) -> None:
    """Write a job's front to a file, whose ending says in which form. Raises UsageError, StoreError."""
    form = _FORMS.get(path.suffix.lower())
    if form is None:
        raise UsageError(f"--plot is {str(path)!r}: give a file that ends in .png or .svg")
    if not path.parent.is_dir():
        raise UsageError(f"--plot is {str(path)!r}: there is no folder {str(path.parent)!r}; make it, or name another")
    picture = place.picture(job, form, scheme)
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise UsageError(f"--plot is {str(path)!r}: {error.strerror}; name a file that can be written") from error
