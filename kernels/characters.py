"""Characters of a text that a reader does not see, or that act on the screen instead of showing.

A terminal obeys escapes; a lone carriage return overwrites a line; bidirectional and zero-width
characters make a text read otherwise than it compiles.
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
# Of a character class; tab, line feed and carriage return are for its user to add.
CONTROL: Final = "\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\u2028\u2029"
HIDDEN: Final = f"{CONTROL}{BIDIRECTIONAL}{ZERO_WIDTH}"

_HIDDEN: Final = re.compile(f"[{HIDDEN}]|\r(?!\n)")


def hidden_in(text: str) -> str:
    """The first character that would not show, as `visible` writes it; "" where there is none.

    Tabs and the ends of lines, `\\n` and `\\r\\n`, are none.
    """
    found = _HIDDEN.search(text)
    return "" if found is None else _shown(found)


def visible(text: str) -> str:
    """The text with each such character written out: `^M`, `^[`, `<U+202E>`."""
    if text.isascii() and text.isprintable():  # most are, and this is ten times as fast
        return text
    return _HIDDEN.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"^{chr(code ^ 0x40)}" if code < 0x80 else f"<U+{code:04X}>"
