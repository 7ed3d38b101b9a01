"""A few sequences of the differential test, where a RabbitMQ 3.10 is at hand (RABBITMQ_URL)."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.server import ConnectorProcess
from tools.differential.operations import draw
from tools.differential.play import Player

SEQUENCES = int(os.environ.get("DIFFERENTIAL_SEQUENCES", "5"))


@pytest.mark.timeout(60 + 10 * SEQUENCES)
def test_random_sequences_go_as_on_rabbitmq(tmp_path: Path) -> None:
    reference = os.environ.get("RABBITMQ_URL")
    if not reference:
        pytest.skip("RABBITMQ_URL is not set: no RabbitMQ to compare with")
    vhost = unquote(urlsplit(reference).path[1:]) or "/"  # its name shows in texts
    flags = ["--requeue", "original", *([] if vhost == "/" else ["--vhosts", vhost])]
    with ConnectorProcess(tmp_path / "own", flags=flags) as connector:
        player = Player(connector.url_of(vhost), reference)
        for seed in range(1, SEQUENCES + 1):
            operations = draw(seed, 30)
            found = player.play(operations) and player.play(operations, is_slow=True)
            assert found is None, f"seed {seed}: {found}"
