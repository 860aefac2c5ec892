"""Inline PTX, executed: `asm` statements of a preprocessed kernel become calls of the runtime.

`statements` finds them in the C++ and `call_site` the line that an error shall name; `grammar`
reads the PTX; `instructions` holds the table of what can be executed, which lies in `table/` in the
notation of `forms`; `emit` writes the C++ of one statement and `translate` puts it in the place of
the `asm`.
"""

from engine.cuda_on_host.ptx.translate import has_asm, translate_asm

__all__ = ["has_asm", "translate_asm"]
