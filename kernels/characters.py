"""Characters of a text that are invisible, or that control a terminal instead of being displayed.

A terminal interprets escape sequences, a lone carriage return overwrites a line, and bidirectional
or zero-width characters make a text look different from what is compiled.
"""

from __future__ import annotations

import re
from typing import Final

BIDIRECTIONAL: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
# Without width or glyph: soft hyphen, joiners, fillers, invisible operators, byte order mark,
# annotation marks and tags.
ZERO_WIDTH: Final = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164"
    "\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff"
)
# Body of a regex character class, without tab, line feed and carriage return, which users add.
CONTROL: Final = "\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\u2028\u2029"
HIDDEN: Final = f"{CONTROL}{BIDIRECTIONAL}{ZERO_WIDTH}"

_HIDDEN: Final = re.compile(f"[{HIDDEN}]|\r(?!\n)")


def hidden_in(text: str) -> str:
    """Return the first invisible or control character, as `visible` writes it; empty if there is
    none.

    Tabs and line ends, `\\n` and `\\r\\n`, are allowed.
    """
    found = _HIDDEN.search(text)
    return "" if found is None else _shown(found)


def visible(text: str) -> str:
    """Return the text with each such character escaped: `^M`, `^[`, `<U+202E>`."""
    if text.isascii() and text.isprintable():  # the usual case, and ten times as fast
        return text
    return _HIDDEN.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"^{chr(code ^ 0x40)}" if code < 0x80 else f"<U+{code:04X}>"
