"""TLS between all: who is let in, who is not, certificates that are replaced, and a Redis behind TLS and a password."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import redis.asyncio

from baton.directory.connection import check_url, connect
from baton.errors import BatonError, ErrorCode
from baton.grpc_util.channel import open_channel
from baton.rpc import inference_pb2, inference_pb2_grpc
from baton.tls import Tls, make_tls
from tests.fakes.certificates import Authority
from tests.fakes.gateway_stack import ANSWER, Stack, eventually, ids_of, running_stack
from tests.fakes.redis_server import RedisServer
from tests.fakes.text_model import write_text_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


class Site:
    """An authority and the folders of its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.authority = folder, Authority()
        self.gateway = self.authority.write(folder / "gateway")
        self.others = self.authority.tls(folder / "others")

    def no_certificate(self) -> Tls:
        return self.authority.tls(self.folder / "nobody", with_certificate=False)

    def stranger(self) -> Tls:
        """Trusts our authority, has a certificate of another one."""
        tls = Authority().tls(self.folder / "stranger")
        self.authority.write(self.folder / "stranger", with_certificate=False)
        return Tls(tls.folder)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
async def stack(model: Path, site: Site) -> AsyncIterator[Stack]:
    async with running_stack(model, tls=site.others, tls_dir=site.gateway, mtls=True, http_port=0) as running:
        yield running


async def list_models(port: int, tls: Tls | None) -> Any:
    async with open_channel(f"127.0.0.1:{port}", tls, []) as channel:
        return await inference_pb2_grpc.InferenceStub(channel).ListModels(
            inference_pb2.ListModelsRequest(), timeout=5.0
        )


async def refused(port: int, tls: Tls | None) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await list_models(port, tls)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def https(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.folder / "ca.pem")
    if (tls.folder / "cert.pem").exists():
        context.load_cert_chain(tls.folder / "cert.pem", tls.folder / "key.pem")
    return context


async def http_status(stack: Stack, tls: Tls) -> int:
    async with aiohttp.ClientSession() as http, http.get(f"{stack.http_url}/ready", ssl=https(tls)) as response:
        return response.status


async def test_all_hops_with_certificates(stack: Stack, site: Site) -> None:
    assert ids_of(await stack.generate()) == ANSWER
    assert await http_status(stack, site.others) == 200


async def test_who_has_no_certificate_of_ours_is_refused_everywhere(stack: Stack, site: Site) -> None:
    worker_port = int(stack.directory.records[0].address.rpartition(":")[2])
    for tls in (None, site.no_certificate(), site.stranger()):
        await refused(stack.port, tls)
        await refused(worker_port, tls)
        if tls is not None:
            with pytest.raises(aiohttp.ClientError):
                await http_status(stack, tls)
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientError):
            await http.get(stack.http_url.replace("https", "http") + "/ready")


async def test_clients_and_the_gateway_refuse_servers_of_another_authority(
    model: Path, site: Site, tmp_path: Path
) -> None:
    other = Authority()
    wrong = other.tls(tmp_path / "wrong")
    async with running_stack(model, tls=wrong, tls_dir=site.gateway, mtls=False, http_port=0) as stack:
        await refused(stack.port, wrong)
        with pytest.raises(aiohttp.ClientError):
            await http_status(stack, wrong)
        async with open_channel(f"127.0.0.1:{stack.port}", site.others, []) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as error:  # the workers cannot be reached
                async for _ in stub.Generate(inference_pb2.GenerateRequest(text="a"), timeout=10.0):
                    pass
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_for_another_host_is_refused(model: Path, site: Site) -> None:
    site.authority.write(site.gateway, True, "gateway.elsewhere")
    async with running_stack(model, tls=site.others, tls_dir=site.gateway, mtls=True) as stack:
        await refused(stack.port, site.others)


async def test_without_mtls_clients_need_no_certificate(model: Path, site: Site, tmp_path: Path) -> None:
    workers = Tls(site.others.folder, mutual=False)
    async with running_stack(model, tls=workers, tls_dir=site.gateway, http_port=0) as stack:
        assert (await list_models(stack.port, site.no_certificate())).models
        assert await http_status(stack, site.no_certificate()) == 200
        await refused(stack.port, None)


async def test_a_new_authority_replaces_the_old_one_while_all_run(stack: Stack, site: Site) -> None:
    """In the order that docs/security.md gives: trust both, then new certificates, then only the new authority."""
    assert ids_of(await stack.generate()) == ANSWER
    new = Authority()
    old_ca = (site.gateway / "ca.pem").read_bytes()
    folders = (site.gateway, site.others.folder)
    for folder in folders:
        new.write(folder)  # certificates of the new one; both are trusted
        (folder / "ca.pem").write_bytes((folder / "ca.pem").read_bytes() + old_ca)
    newcomer = new.tls(site.folder / "newcomer")

    async def served(tls: Tls) -> bool:
        try:
            await list_models(stack.port, tls)
            return await http_status(stack, tls) == 200
        except (grpc.aio.AioRpcError, aiohttp.ClientError):
            return False

    await eventually_true(lambda: served(newcomer))
    assert ids_of(await stack.generate()) == ANSWER
    for folder in folders:
        new.write(folder, with_certificate=False)  # the old authority is not trusted any more
    with_old = site.authority.tls(site.folder / "old")
    both = (with_old.folder / "ca.pem").read_bytes() + (newcomer.folder / "ca.pem").read_bytes()
    (with_old.folder / "ca.pem").write_bytes(both)
    assert (await list_models(stack.port, newcomer)).models

    async def old_is_refused() -> bool:
        try:
            await list_models(stack.port, Tls(with_old.folder))
        except grpc.aio.AioRpcError:
            return True
        return False

    await eventually_true(old_is_refused)
    await eventually(lambda: not stack.gateway.pool._dropped)
    assert ids_of(await stack.generate()) == ANSWER  # over channels with new certificates


async def eventually_true(condition: Callable[[], Awaitable[bool]]) -> None:
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + 20.0
    while not await condition():
        assert loop.time() < give_up_at, "the condition did not come true in time"
        await asyncio.sleep(0.1)


def test_half_written_files_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority()
    tls = authority.tls(tmp_path / "a")
    other = authority.write(tmp_path / "b")
    assert tls.generation == 0
    (tls.folder / "cert.pem").write_bytes((other / "cert.pem").read_bytes())  # its key has not come yet
    assert tls.generation == 0
    assert "keeping the certificates as they were" in caplog.text
    (tls.folder / "key.pem").write_bytes((other / "key.pem").read_bytes())
    assert tls.generation == 1
    assert (other / "key.pem").read_text().splitlines()[1] not in caplog.text


def test_what_is_no_folder_of_certificates_is_told(tmp_path: Path) -> None:
    with pytest.raises(BatonError, match=r"ca\.pem"):
        Tls(tmp_path)
    folder = Authority().write(tmp_path / "ca", with_certificate=False)
    with pytest.raises(BatonError, match=r"cert\.pem is missing"):
        Tls(folder).server_credentials()
    (folder / "ca.pem").write_text("no certificate")
    with pytest.raises(BatonError, match="--tls-dir"):
        Tls(folder)
    with pytest.raises(BatonError, match="--mtls without --tls-dir"):
        make_tls(None, mutual=True)


@asynccontextmanager
async def tls_in_front_of(port: int, tls: Tls) -> AsyncIterator[int]:
    """A TLS end in front of a plain server, for the packaged redis-server has none."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, behind_writer), copy(behind_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls.server_context())
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_redis_with_tls_and_a_user_of_its_own(site: Site, tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        plain = redis.asyncio.Redis(port=server.port)
        await plain.execute_command(*["ACL", "SETUSER", "baton", "on", ">s3cret-word", "~baton:*", "+@all"])
        await plain.execute_command(*["ACL", "SETUSER", "default", "off"])
        password = tmp_path / "password"
        password.write_text("s3cret-word\n")
        environ = {
            "BATON_TLS_DIR": str(site.others.folder),
            "BATON_REDIS_USER": "baton",
            "BATON_REDIS_PASSWORD_FILE": str(password),
        }
        async with tls_in_front_of(server.port, site.others) as port:
            url = f"rediss://127.0.0.1:{port}/0"
            async with connect(url, environ) as client:
                await client.set("baton:a", "1")
                with pytest.raises(redis.exceptions.NoPermissionError):
                    await client.set("other", "1")
            without_password = {name: environ[name] for name in ("BATON_TLS_DIR", "BATON_REDIS_USER")}
            for bad in (without_password, {}, {**environ, "BATON_TLS_DIR": str(site.stranger().folder)}):
                async with connect(url, bad) as client:
                    with pytest.raises(redis.exceptions.RedisError):
                        await client.get("baton:a")
            async with connect(
                f"rediss://baton:s3cret-word@127.0.0.1:{port}/0", {**environ, "BATON_REDIS_USER": "x"}
            ) as c:
                assert await c.get("baton:a") == b"1"  # the URL's user counts
        await plain.aclose()
    finally:
        server.stop()


@pytest.mark.parametrize(
    "url",
    ["http://user:s3cret@host/0", "redis://user:s3cret@host:port/0", "user:s3cret@host", "red://h?password=s3cret"],
)
def test_no_message_shows_the_password_of_a_redis_url(url: str) -> None:
    with pytest.raises(BatonError) as error:
        check_url(url)
    assert (error.value.code, "s3cret" in str(error.value)) == (ErrorCode.INVALID_ARGUMENT, False)
