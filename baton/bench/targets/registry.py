"""Which target an address names; its module is imported when asked for."""

from urllib.parse import urlsplit

from baton.arguments import BadArgument, parse_address
from baton.bench.targets.base import Target
from baton.errors import BatonError, ErrorCode, invalid


def make_target(url: str, temperature: float) -> Target:
    """grpc://host:port for a Baton gateway, http:// or https:// for an OpenAI-compatible endpoint.

    Raises:
        BatonError: INVALID_ARGUMENT for another address; FAILED_PRECONDITION when aiohttp is missing.
    """
    scheme, rest = urlsplit(url).scheme, url.partition("://")[2]
    if scheme == "grpc":
        from baton.bench.targets.grpc import GrpcTarget

        try:
            return GrpcTarget(parse_address(rest), temperature)
        except BadArgument as error:
            raise invalid(f"--target {url}: {error}") from error
    if scheme in ("http", "https") and urlsplit(url).hostname:
        try:
            from baton.bench.targets.openai import OpenAiTarget
        except ImportError as error:
            raise BatonError(
                ErrorCode.FAILED_PRECONDITION,
                f"--target {url} needs aiohttp ({error}); install it with: pip install 'baton[bench]'",
            ) from error
        return OpenAiTarget(url, temperature)
    raise invalid(f"got --target {url}, expected grpc://host:port, http://host:port or https://host:port")
