"""What the client's processes and the one that started them tell each other."""

import msgspec

from baton.bench.load.lag import ClientLag
from baton.bench.load.options import LoadOptions
from baton.bench.load.sender import Counts
from baton.bench.rows import RequestRow


class Share(msgspec.Struct, frozen=True):
    """What a process is to do; it gets this when it is made."""

    options: LoadOptions
    process: int


class Start(msgspec.Struct, frozen=True, tag=True):
    """To the process: the load begins at this time, by `now_s`."""

    start_s: float


class Stop(msgspec.Struct, frozen=True, tag=True):
    """To the process: end the load and send what there is."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From the process: connected and warmed up."""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """From the process, now and then."""

    counts: Counts


class Done(msgspec.Struct, frozen=True, tag=True):
    """From the process, last."""

    rows: list[RequestRow]
    lag: ClientLag


class Broken(msgspec.Struct, frozen=True, tag=True):
    """From the process instead of Done: it cannot go on."""

    code: str  # of a BatonError
    message: str


ToProcess = Start | Stop
FromProcess = Ready | Progress | Done | Broken
encode = msgspec.msgpack.encode
to_process = msgspec.msgpack.Decoder(ToProcess)
from_process = msgspec.msgpack.Decoder(FromProcess)
