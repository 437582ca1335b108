"""Downloads from a stand-in for the hub by the real client: resumed, checked, in the shared cache, offline first."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmhub.cli.pull import located
from lmhub.errors import LmhubError
from lmhub.hub import Hub
from lmhub.remote.cache import find
from lmhub.remote.names import Ambiguous, Reference
from lmhub.remote.pull import pull
from lmhub.testing.tiny import tiny_gguf

REPO = "org/Model-GGUF"
Q8 = Reference(REPO, "Q8_0")
NBYTES = 5_000_000


@pytest.fixture
def data(hub: Any) -> bytes:
    """The Q8_0 model of the repository; there is a Q4_0 in two parts beside it."""
    data = random.Random(1).randbytes(NBYTES)
    parts = {f"Q4_0/Model-Q4_0-0000{n}-of-00002.gguf": bytes((n,)) * 1000 for n in (2, 1)}
    hub.files[REPO] = {"README.md": b"hello", "Model-Q8_0.gguf": data, **parts}
    return data


def test_a_model_and_where_it_lies(hub: Any, data: bytes, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = pull(Q8, lambda *told: seen.append(told), endpoint=hub.endpoint, cache=tmp_path)
    assert path == tmp_path / "models--org--Model-GGUF" / "snapshots" / hub.commit / "Model-Q8_0.gguf"
    assert path.read_bytes() == data
    assert seen[-1] == ("Model-Q8_0.gguf", NBYTES, NBYTES) and len(seen) >= 5
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert not list(tmp_path.rglob("*.incomplete"))


def test_the_tools_of_hugging_face_find_what_was_pulled_and_the_other_way_round(
    hub: Any, data: bytes, tmp_path: Path
) -> None:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    path = pull(Q8, endpoint=hub.endpoint, cache=tmp_path)
    assert try_to_load_from_cache(REPO, "Model-Q8_0.gguf", cache_dir=tmp_path) == str(path)
    n_transfers = len(hub.transfers())
    assert hf_hub_download(REPO, "Model-Q8_0.gguf", cache_dir=tmp_path, endpoint=hub.endpoint) == str(path)
    assert pull(Q8, endpoint=hub.endpoint, cache=tmp_path) == path
    assert len(hub.transfers()) == n_transfers
    part = hf_hub_download(REPO, "Q4_0/Model-Q4_0-00001-of-00002.gguf", cache_dir=tmp_path, endpoint=hub.endpoint)
    hub.requests.clear()
    assert pull(Reference(REPO, "Q4_0"), endpoint=hub.endpoint, cache=tmp_path) == Path(part)
    assert [path for method, path, _ in hub.requests if path.startswith("/cdn/")] == [
        f"/cdn/{REPO}/Q4_0/Model-Q4_0-00002-of-00002.gguf"
    ]


def test_all_parts_of_a_split_model(hub: Any, data: bytes, tmp_path: Path) -> None:
    path = pull(Reference(REPO, "q4_0"), endpoint=hub.endpoint, cache=tmp_path)
    assert [one.name for one in sorted(path.parent.iterdir())] == [f"Model-Q4_0-0000{n}-of-00002.gguf" for n in (1, 2)]
    assert path.read_bytes() == b"\1" * 1000


def test_a_connection_that_breaks_is_taken_up_where_it_broke(hub: Any, data: bytes, tmp_path: Path) -> None:
    hub.stops = [2_500_000, 1_000_000]
    assert pull(Q8, endpoint=hub.endpoint, cache=tmp_path).read_bytes() == data
    first, second, third = hub.transfers()
    assert first is None
    assert (_start(second), _start(third)) == (2_500_000, 3_500_000)


def test_a_hub_that_sends_everything_again(hub: Any, data: bytes, tmp_path: Path) -> None:
    hub.stops, hub.ignores_ranges = [2_500_000], True
    assert pull(Q8, endpoint=hub.endpoint, cache=tmp_path).read_bytes() == data


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(hub: Any, data: bytes, tmp_path: Path) -> None:
    hub.lies = {"Model-Q8_0.gguf"}
    with pytest.raises(LmhubError, match=r"its SHA-256 differs\); it was deleted"):
        pull(Q8, endpoint=hub.endpoint, cache=tmp_path)
    assert find(Q8, tmp_path) is None and not [one for one in tmp_path.rglob("blobs/*") if one.is_file()]
    hub.lies = set()
    assert pull(Q8, endpoint=hub.endpoint, cache=tmp_path).read_bytes() == data


def test_what_is_in_the_cache_is_found_without_a_request(hub: Any, data: bytes, tmp_path: Path) -> None:
    path = pull(Q8, endpoint=hub.endpoint, cache=tmp_path)
    hub.requests.clear()
    assert find(Q8, tmp_path) == find(Reference(REPO), tmp_path) == path
    assert find(Reference(REPO, "Q4_0"), tmp_path) is None and find(Reference("org/other"), tmp_path) is None
    pull(Reference(REPO, "Q4_0"), endpoint=hub.endpoint, cache=tmp_path)
    with pytest.raises(Ambiguous, match="may be any of these"):
        find(Reference(REPO), tmp_path)
    (path.parent / "Q4_0" / "Model-Q4_0-00002-of-00002.gguf").unlink()
    assert find(Reference(REPO, "Q4_0"), tmp_path) is None and find(Reference(REPO), tmp_path) == path


def test_an_older_snapshot_serves_until_a_newer_one_is_whole(hub: Any, data: bytes, tmp_path: Path) -> None:
    path = pull(Q8, endpoint=hub.endpoint, cache=tmp_path)
    repo = tmp_path / "models--org--Model-GGUF"
    (repo / "snapshots" / ("d" * 40)).mkdir()
    (repo / "refs" / "main").write_text("d" * 40)
    assert find(Q8, tmp_path) == path


@pytest.mark.parametrize(
    ("repo", "message"),
    [
        ("org/nothing", r"has no repository org/nothing, or it is private: check the name, or run `hf auth login`$"),
        ("org/gated", r"^org/gated is gated: accept its terms at http://127.*/org/gated, then log in with"),
    ],
)
def test_repositories_that_cannot_be_had(hub: Any, repo: str, message: str, tmp_path: Path) -> None:
    hub.files["org/gated"], hub.gated = {"m-Q8_0.gguf": b"x"}, {"org/gated"}
    with pytest.raises(LmhubError, match=message) as caught:
        pull(Reference(repo, "Q8_0"), endpoint=hub.endpoint, cache=tmp_path)
    assert "\n" not in str(caught.value)


def test_a_hub_that_is_not_there(hub: Any, data: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = pull(Q8, endpoint=hub.endpoint, cache=tmp_path / "full")
    nowhere = "http://127.0.0.1:1"
    with pytest.raises(LmhubError, match=rf"^{Q8} cannot be had from {nowhere} \(.*\); check the connection") as caught:
        pull(Q8, endpoint=nowhere, cache=tmp_path / "empty")
    assert "\n" not in str(caught.value)
    assert pull(Q8, endpoint=nowhere, cache=tmp_path / "full") == path


# --- the command -----------------------------------------------------------------------------------------------------


def process(hub: Any, home: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), **env}
    command = [sys.executable, "-m", "lmhub", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outcome(running: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = running.communicate(timeout=120)
    return running.returncode, out, err


def test_a_download_that_was_killed_goes_on_where_it_was(hub: Any, data: bytes, tmp_path: Path) -> None:
    hub.stops, hub.holds = [3_000_000], True
    running = process(hub, tmp_path, "pull", str(Q8))
    assert hub.stalled.wait(60)
    [partial] = _grown(tmp_path, 2_000_000)
    running.send_signal(signal.SIGKILL)
    outcome(running)
    assert partial.exists()
    hub.released.set()
    status, out, err = outcome(process(hub, tmp_path, "pull", str(Q8)))
    assert (status, "Downloading Model-Q8_0.gguf, 5.0 MB" in err) == (0, True), err
    path = Path(out.strip())
    assert path.read_bytes() == data and path.is_relative_to(tmp_path / "hub")
    first, second = hub.transfers()
    assert first is None and _start(second) >= 2_000_000


def test_offline_nothing_is_asked_for(hub: Any, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pull(Q8, endpoint=hub.endpoint, cache=tmp_path / "hub")
    hub.requests.clear()
    assert outcome(process(hub, tmp_path, "pull", str(Q8), HF_HUB_OFFLINE="1"))[:2] == (0, f"{path}\n")
    status, _, err = outcome(process(hub, tmp_path, "pull", f"{REPO}:Q4_0", HF_HUB_OFFLINE="1"))
    assert status == 2 and err.endswith("and HF_HUB_OFFLINE is set; unset it to download the model\n")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(LmhubError, match=rf"`lmhub pull {REPO}:Q4_0` downloads it"):
        Hub().open(f"{REPO}:Q4_0")
    assert not hub.requests


def test_commands_take_such_names(hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files["org/tiny"] = {"tiny-F32.gguf": tiny_gguf("qwen3", tmp_path / "t.gguf", qk_norm=True).read_bytes()}
    status, out, err = outcome(process(hub, tmp_path, "run", "org/tiny", "Hi", "--max-tokens", "4", "--seed", "1"))
    assert status == 0 and out.strip(), err
    hub.requests.clear()
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    [path] = located([Path("org/tiny:f32")])
    assert path == find(Reference("org/tiny"), tmp_path / "hub")
    with Hub().open("org/tiny:F32") as file:
        assert file.architecture == "qwen3"
    here = tmp_path / "t.gguf"
    assert located([here, Path("demo")]) == [here, Path("demo")] and not hub.requests


def _start(wanted: str | None) -> int:
    assert wanted is not None
    return int(wanted.removeprefix("bytes=").removesuffix("-"))


def _grown(folder: Path, nbytes: int) -> list[Path]:
    """The partial files, once one of them has that many bytes."""
    for _ in range(10_000_000):
        found = list(folder.rglob("*.incomplete"))
        if found and found[0].stat().st_size >= nbytes:
            return found
    raise AssertionError("nothing arrives")
