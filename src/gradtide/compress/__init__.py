"""Codecs: gradients made smaller, and what that leaves out kept, to be sent later. Pure: no socket, no group, no clock.

settings.py   what a user says: Compress("topk", ratio=0.01)
codec.py      what every codec can do, and the list of them
compiled.py   kernels, compiled for each type of elements
half.py       fp16 (a scale for each block) and bf16
int8.py       a byte a value, right on average
onebit.py     the signs
topk.py       the largest values
powersgd.py   two thin matrices
payload.py    a compressed gradient as bytes, and the checks of one that arrives
residual.py   what was left out, by parameter, sent once whatever becomes of a step
"""

from gradtide.compress import half, int8, onebit, powersgd, topk  # noqa: F401  (they put themselves on the list)
from gradtide.compress.codec import CODECS, FORMATS, Codec, Form
from gradtide.compress.payload import PayloadKind, pack, payload_bytes, read, unpack
from gradtide.compress.residual import Residuals
from gradtide.compress.settings import AUTO, Compress, as_compress, codec_of_tag, text_of_tag

__all__ = [
    "AUTO",
    "CODECS",
    "FORMATS",
    "Codec",
    "Compress",
    "Form",
    "PayloadKind",
    "Residuals",
    "as_compress",
    "codec_of_tag",
    "pack",
    "payload_bytes",
    "read",
    "text_of_tag",
    "unpack",
]
