"""The page of a job's port: one file, which loads nothing but `/api/status`, and can do nothing else.

Its policy allows exactly the script and the style that the file has. So no text of a group can run as code, even if it
got into the page as HTML.
"""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from connectors.diagnosis.endpoint import HttpAnswer


def page() -> HttpAnswer:
    """Return the page."""
    text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    style, script = (_hash_of(text, tag) for tag in ("style", "script"))
    policy = (
        f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return HttpAnswer(text, content_type="text/html; charset=utf-8", policy=policy)


def _hash_of(text: str, tag: str) -> str:
    [body] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"
