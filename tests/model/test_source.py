"""Where a name points to, and what is refused before torch is imported."""

from __future__ import annotations

import http.server
import json
import os
import pickle
import subprocess
import sys
import threading
import time

import pytest
from helpers import causal_lm

from pte_cli.config import ModelConfig
from pte_cli.errors import UsageError
from pte_cli.model.source import Source, describe_model, locate

LLAMA = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}


def folder(path, config=LLAMA, weights=("model.safetensors",)):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    for name in weights:
        (path / name).write_bytes(pickle.dumps(0))
    return path


def test_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "here")
    (tmp_path / "here" / "m.gguf").write_bytes(b"")
    assert locate("here") == Source("folder", "here")
    assert locate("here/m.gguf") == Source("folder", "here", "m.gguf")
    assert locate("owner/name") == Source("hub", "owner/name")
    assert locate("owner/name/m.gguf") == Source("hub", "owner/name", "m.gguf")
    assert locate("preset:qwen2.5-3b") == Source("preset", "preset:qwen2.5-3b")
    for name in ("nowhere", "a/b/c", "here/other.gguf", "owner name/x", "here/config.json"):
        with pytest.raises(UsageError, match="model.name = "):
            locate(name)


@pytest.mark.parametrize(
    ("config", "weights", "settings", "message"),
    [
        (LLAMA, ("pytorch_model.bin",), {}, "its weights are pickled .pytorch_model.bin"),
        (LLAMA, ("model.pt",), {}, "its weights are pickled"),
        (LLAMA, (), {}, "no .*safetensors in it"),
        ({"model_type": "gpt2"}, ("model.safetensors",), {}, "'gpt2' is not supported"),
        ({"model_type": "deepseek_v3"}, ("model.safetensors",), {}, "compressed latents"),
        ([], ("model.safetensors",), {}, "config.json can't be read .expected an object"),
        ({**LLAMA, "quantization_config": {"quant_method": "awq"}}, ("model.safetensors",), {}, "quantised .'awq'"),
    ],
)
def test_what_can_not_be_loaded_is_named(tmp_path, config, weights, settings, message):
    folder(tmp_path / "m", config, weights)
    with pytest.raises(UsageError, match=message):
        describe_model(ModelConfig(name=str(tmp_path / "m"), **settings))


def test_a_folder_without_config_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"a folder without a model's config.json"):
        describe_model(ModelConfig(name=str(tmp_path)))


@pytest.mark.parametrize("missing", ["bitsandbytes", "gguf"])
def test_a_package_that_is_not_installed_is_named_with_what_to_install(tmp_path, monkeypatch, missing):
    folder(tmp_path / "m")
    monkeypatch.setattr("pte_cli.model.source.find_spec", lambda name: None if name == missing else object())
    if missing == "bitsandbytes":
        with pytest.raises(UsageError, match=r"model.quantization = '4bit': .*pip install 'pte-cli\[4bit\]'"):
            describe_model(ModelConfig(name=str(tmp_path / "m"), quantization="4bit"))
        describe_model(ModelConfig(name=str(tmp_path / "m")))
    else:
        (tmp_path / "m.gguf").write_bytes(b"")
        monkeypatch.setattr("pte_cli.model.gguf.read_header", lambda path: None)
        monkeypatch.setattr("pte_cli.model.gguf.gguf_config", lambda name, header: LLAMA)
        with pytest.raises(UsageError, match=r"pip install 'pte-cli\[gguf\]'"):
            describe_model(ModelConfig(name=str(tmp_path / "m.gguf")))


def pte(*arguments, cwd, **env):
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pte_cli", *arguments],
        cwd=cwd,
        env={**os.environ, "HF_HOME": str(cwd / "hf"), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, time.monotonic() - start


@pytest.fixture
def hub(tmp_path):
    """A small hub: a model, a gated one, one without config.json; everything else is not there."""
    answers = {
        "/me/llama/resolve/main/config.json": (
            200,
            json.dumps({**LLAMA, "intermediate_size": 8, "vocab_size": 10}),
            "",
        ),
        "/me/mamba/resolve/main/config.json": (200, '{"model_type": "mamba"}', ""),
        "/me/gated/resolve/main/config.json": (403, "", "GatedRepo"),
        "/me/llama/resolve/other/config.json": (404, "", "RevisionNotFound"),
        "/me/files/resolve/main/config.json": (404, "", "EntryNotFound"),
    }

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, body, code = answers.get(self.path, (401, "", "RepoNotFound"))
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("me/nothing", "neither a folder here nor a model on the hub that you can see (it answered 401)"),
        ("me/gated", "its hub page asks for an agreement first"),
        ("me/files", "has no config.json on the hub; for a GGUF file, add its name"),
        ("me/mamba", "recurrent state"),
    ],
)
def test_hub_ids_are_refused_before_anything_is_loaded(tmp_path, hub, name, message):
    done, seconds = pte("train", "--model", name, cwd=tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="0")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert seconds <= 3
    assert not (tmp_path / "runs").exists()


def test_a_revision_that_is_not_there_is_named(tmp_path, hub):
    done, _ = pte(
        "train",
        "--model",
        "me/llama",
        "--set",
        "model.revision=other",
        cwd=tmp_path,
        HF_ENDPOINT=hub,
        HF_HUB_OFFLINE="0",
    )
    assert "has no revision 'other' (model.revision)" in done.stderr


def test_a_dry_run_of_a_hub_id_shows_its_sizes(tmp_path, hub):
    arguments = ["train", "--model", "me/llama", "--encoder", "none", "--dry-run", "--json"]
    done, _ = pte(*arguments, cwd=tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="0")
    # Embedding and head 2 * 80, layer 4 * 64 + 3 * 64 + 2 * 8, last norm 8.
    assert json.loads(done.stdout)["sizes"]["parameters"]["base, frozen"] == 160 + 464 + 8


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "nor in the local hub cache, and HF_HUB_OFFLINE is set"),
        (
            {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"},
            "not a folder here, and the hub can't be reached",
        ),
    ],
)
def test_without_network_a_hub_id_is_one_line(tmp_path, env, message):
    done, seconds = pte("train", "--model", "me/llama", cwd=tmp_path, **env)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert seconds <= 3


def test_a_model_in_the_hub_cache_loads_offline(tmp_path):
    """The layout huggingface_hub keeps: refs name a commit, snapshots hold its files."""
    cache = tmp_path / "hf" / "hub" / "models--me--tiny"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("a" * 40)
    snapshot = cache / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    causal_lm("qwen2").save_pretrained(snapshot)
    from pte_cli.model.source import TINY

    for file in TINY.glob("tokenizer*"):
        (snapshot / file.name).write_bytes(file.read_bytes())
    done, _ = pte("eval", "--model", "me/tiny", "--problems", "2", "--json", cwd=tmp_path, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"] == "me/tiny"


def test_pickled_weights_are_refused_without_torch(tmp_path):
    folder(tmp_path / "m", weights=("pytorch_model.bin",))
    code = (
        "import sys\nfrom pte_cli.config import load_config\nfrom pte_cli.checks import check_config\n"
        "from pte_cli.errors import UsageError\n"
        "try: check_config(load_config(env={}, sets=['model.name=m']))\n"
        "except UsageError as error: print(error)\n"
        "assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pickled (pytorch_model.bin)" in done.stdout
