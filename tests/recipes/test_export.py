"""Weights leave the tool whole: merged without loss, refused on a wrong base, pushed with their card."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
import yaml

from rl.errors import UserError
from rl.models.adapters import base_fingerprint, load_adapter, merge, probe_logits
from rl.models.config import LoraConfig, ModelConfig
from rl.models.export import export, find_weights, push, require_replaceable
from rl.models.loading import add_lora
from tests.helpers.forked import set_up, start
from tests.helpers.models import ARCHITECTURES
from tests.helpers.recipes import ROOT, run_recipe

CPU = torch.device("cpu")


def trained_adapter(folder: Path, make, architecture: str = "qwen3", **changes):
    """A base in `folder`/base and an adapter of it with random weights in `folder`/final, and the adapter's model."""
    from rl.models.adapters import base_facts, write_base

    model, tokenizer = make(architecture, **changes)
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    model.config.name_or_path = model.name_or_path = str(folder / "base")
    base, adapter = add_lora(model, LoraConfig(rank=4, alpha=8), checkpointing=False, seed=0)
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            if ".lora_B" in name:
                parameter.normal_(std=0.02)
    adapter.save_pretrained(folder / "final")
    tokenizer.save_pretrained(folder / "final")
    write_base(folder / "final", base_facts(base, tokenizer))
    return adapter.eval(), tokenizer


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_merged_weights_are_adapter_plus_base_in_a_fresh_process(
    architecture, tied, tiny_random_model, tmp_path
):
    adapter, tokenizer = trained_adapter(tmp_path, tiny_random_model, architecture, tie_word_embeddings=tied)
    report = export(tmp_path / "final", None, tmp_path / "merged", "float32", "cpu")
    assert report["tensors"] == 2 * 7 * 2  # two layers, seven projections, A and B
    assert report["changed"] > 0.99
    assert report["logit_difference"] < 1e-4 and report["stored_logit_difference"] < 1e-4
    expected = probe_logits(adapter, tokenizer)
    with adapter.disable_adapter():
        assert (probe_logits(adapter, tokenizer) - expected).abs().max() > 1e-2  # the adapter does something
    torch.save(expected, tmp_path / "expected.pt")
    if architecture == "qwen3" and tied:
        code = (
            "import torch, sys\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
            f"sys.path.insert(0, {str(ROOT)!r})\nfrom rl.models.adapters import probe_logits\n"
            "model = AutoModelForCausalLM.from_pretrained('merged')\n"
            "got = probe_logits(model, AutoTokenizer.from_pretrained('merged'))\n"
            "assert 'peft' not in sys.modules\n"
            "print((got - torch.load('expected.pt')).abs().max().item())\n"
        )
        out = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert out.returncode == 0, out.stderr
        assert float(out.stdout) < 1e-4
    names = {p.name for p in (tmp_path / "merged").iterdir()}
    assert {
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "merge.json",
    } <= names


def test_bfloat16_is_reached_by_one_cast_and_its_loss_is_reported(tiny_random_model, tmp_path):
    """A small update: in bfloat16 most weights keep the base's value, and the report says so."""
    adapter, _ = trained_adapter(tmp_path, tiny_random_model)
    with torch.no_grad():
        for name, parameter in adapter.named_parameters():
            if ".lora_B" in name:
                parameter.mul_(1e-3)
    adapter.save_pretrained(tmp_path / "final")
    base = {
        n.replace(".base_layer", ""): p.clone()
        for n, p in adapter.get_base_model().named_parameters()
        if "lora" not in n
    }
    modules = dict(adapter.get_base_model().named_modules())
    report = export(tmp_path / "final", None, tmp_path / "merged", "bfloat16", "cpu")
    from transformers import AutoModelForCausalLM

    stored = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "merged").named_parameters())
    changed = total = 0
    for name, weight in base.items():
        module = modules[name.rpartition(".")[0]]
        if hasattr(module, "get_delta_weight"):
            expected = (weight + module.get_delta_weight("default")).bfloat16()
            assert torch.equal(stored[name], expected)
            changed += (expected != weight.bfloat16()).sum().item()
            total += weight.numel()
    assert report["changed"] == pytest.approx(changed / total) and report["changed"] < 0.5
    assert report["logit_difference"] < 1e-4 < report["stored_logit_difference"]


def test_another_base_is_refused(tiny_random_model, tmp_path):
    trained_adapter(tmp_path, tiny_random_model)
    other = tiny_random_model()[0]
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight.mul_(1.1)
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match="are not those that"):
        load_adapter(tmp_path / "final", str(tmp_path / "other"), CPU)
    with pytest.raises(UserError, match="cannot be loaded"):
        load_adapter(tmp_path / "final", str(tmp_path / "nowhere"), CPU)


def test_a_fingerprint_sees_the_weights_and_not_their_dtype_or_adapter(tiny_random_model):
    prints = {base_fingerprint(tiny_random_model()[0]), base_fingerprint(tiny_random_model()[0].bfloat16())}
    model = tiny_random_model()[0]
    add_lora(model, LoraConfig(rank=2), checkpointing=False, seed=3)
    prints.add(base_fingerprint(model))
    assert len(prints) == 1
    assert base_fingerprint(tiny_random_model(hidden_size=16)[0]) not in prints


def test_a_renamed_key_is_an_error(tiny_random_model, tmp_path):
    from safetensors.torch import load_file, save_file

    trained_adapter(tmp_path, tiny_random_model)
    file = tmp_path / "final/adapter_model.safetensors"
    tensors = load_file(file)
    name = next(iter(tensors))
    tensors[name.replace("layers.0", "layers.7")] = tensors.pop(name)
    save_file(tensors, file)
    with pytest.raises(UserError, match="2 of its tensors do not fit"):
        load_adapter(tmp_path / "final", None, CPU)
    save_file({}, file)
    with pytest.raises(UserError, match="do not fit"):
        load_adapter(tmp_path / "final", None, CPU)


def test_an_adapter_that_changes_nothing_is_an_error(tiny_random_model, tmp_path):
    adapter, tokenizer = trained_adapter(tmp_path, tiny_random_model)
    with torch.no_grad():
        for name, parameter in adapter.named_parameters():
            if ".lora_B" in name:
                parameter.zero_()
    with pytest.raises(UserError, match="changes no weight"):
        merge(adapter, tokenizer, torch.float32)


@pytest.mark.parametrize("target", [["q_proj", "lm_head"], ["q_proj", "embed_tokens"], ".*(q_proj|lm_head)"])
def test_an_adapter_on_tied_weights_is_refused_before_training_and_at_merge(
    target, tiny_random_model, tmp_path
):
    import peft

    model, tokenizer = tiny_random_model(tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    with pytest.raises(UserError, match="ties its head"):
        add_lora(model, LoraConfig(rank=2, target_modules=target), checkpointing=False, seed=0)
    foreign = tiny_random_model(tie_word_embeddings=True)[0]
    foreign.name_or_path = foreign.config.name_or_path = str(tmp_path / "base")
    peft.get_peft_model(
        foreign, peft.LoraConfig(target_modules=target, task_type="CAUSAL_LM")
    ).save_pretrained(tmp_path / "final")
    with pytest.raises(UserError, match="ties the two"):
        load_adapter(tmp_path / "final", None, CPU)


@pytest.fixture(scope="module")
def lora_run(tmp_path_factory, tiny_random_model) -> Path:
    """A finished LoRA run in `run`, from a model in `model`."""
    folder = tmp_path_factory.mktemp("export")
    set_up(folder, *tiny_random_model())
    process = start(
        "rl_basic", "model.path=model", "model.lora.rank=4", "+rewards.chance._target_=saboteur.chance", "data.train_size=8",
        "batch_size=2", "group_size=2", "max_tokens=8", "max_steps=2", "logger=none", "learning_rate=1e-2", "run_dir=run",
        "+model.facts.licence=mit", cwd=folder,
    )  # fmt: skip
    assert process.wait() == 0, process.err
    return folder


def front_matter(card: Path) -> dict:
    return yaml.safe_load(card.read_text(encoding="utf-8").split("---")[1])


def test_a_run_leaves_an_adapter_with_its_base_and_card(lora_run):
    final = lora_run / "run/final"
    assert find_weights(str(lora_run / "run"), "adapter") == final
    assert json.loads((final / "base.json").read_text())["base"] == str(lora_run / "model")
    assert load_adapter(final, None, CPU).peft_config["default"].r == 4
    facts = front_matter(final / "README.md")
    assert (
        facts["license"] == "mit"
        and facts["library_name"] == "peft"
        and facts["base_model_relation"] == "adapter"
    )


def test_the_recipe_merges_and_shows_what_it_would_push(lora_run):
    result = run_recipe("merge_adapter", "adapter=run", "dry_run=true", "repo_id=me/mine", cwd=lora_run)
    assert result.returncode == 0, result.stderr
    assert "merged 28 LoRA tensors in float32" in result.stdout and "me/mine, private" in result.stdout
    merged = lora_run / "run/final-merged"
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json", "README.md"):
        assert (merged / name).is_file() and name in result.stdout
    card = (merged / "README.md").read_text()
    assert front_matter(merged / "README.md")["license"] == "mit"
    for words in (
        "reward_total",
        "grpo",
        "word_problems",
        "| max_tokens | 8 |",
        "stored once as float32",
        "inherited",
    ):
        assert words in card


def test_mistakes_are_one_line(lora_run):
    (lora_run / "empty").mkdir()
    for arguments, word in {
        ("adapter=empty",): "holds no weights",
        ("adapter=run", "push=true"): "repo_id=null",
        ("adapter=run", "push=true", "repo_id=a/b/c"): "repo_id=a/b/c",
        ("adapter=run", "push=true", "repo_id=me/mine"): "HF_TOKEN",
        ("adapter=run", "out=run"): "holds or lies in",
    }.items():
        process = start(
            "merge_adapter",
            *arguments,
            cwd=lora_run,
            environment={"HF_TOKEN": "", "HF_TOKEN_PATH": "/nonexistent"},
        )
        assert process.wait() == 2, process.out + process.err
        assert (
            process.err.startswith("error: ") and len(process.err.splitlines()) == 1 and word in process.err
        ), process.err


def test_nothing_of_the_users_is_replaced(tmp_path):
    for name in ("base", "run/final", "run/checkpoints/step-2", "notes", "merged", "empty", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "run/config.yaml").write_text("")
    final, base = tmp_path / "run/final", tmp_path / "base"
    (final / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    ours = json.dumps({"tensors": 28})
    for name in ("base", "run/checkpoints/step-2", "merged"):
        (tmp_path / name / "merge.json").write_text(ours)
    (tmp_path / "notes/config.json").write_text("{}")
    (tmp_path / "other/merge.json").write_text("[]")
    (tmp_path / "link").symlink_to(base)
    (tmp_path / "file").write_text("x")
    for name in (
        ".", "run", "run/final", "run/final/x", "run/checkpoints", "run/checkpoints/step-2", "base", "base/x", "link",
        "notes", "other", "file",
    ):  # fmt: skip
        with pytest.raises(UserError, match=r"^out=[^\n]*; type out=final-merged-2, or another new folder$"):
            require_replaceable(tmp_path / name, final, None)
    for name in ("merged", "empty", "new", "run/final-merged", "run/checkpoints/step-2-merged"):
        require_replaceable(tmp_path / name, final, None)
    with pytest.raises(UserError, match="the base"):
        require_replaceable(tmp_path / "merged", final, str(tmp_path / "merged"))
    (final / "adapter_config.json").write_text("{")
    with pytest.raises(UserError, match=r"^adapter=[^\n]*$"):
        require_replaceable(tmp_path / "new", final, None)


class Hub(BaseHTTPRequestHandler):
    """The few calls of the Hub that a push makes; `state` is the server's."""

    def log_message(self, *_):
        pass

    def _answer(self, value) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self._answer({"id": "me/mine", "private": self.server.state["private"], "siblings": []})

    def do_POST(self):
        state = self.server.state
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        state["tokens"].add(self.headers["Authorization"])
        if self.path == "/api/repos/create":
            state["created"] = json.loads(body)
            self._answer({"url": f"http://{self.headers['Host']}/me/mine", "id": "1", "name": "me/mine"})
        elif self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            self._answer(
                {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]}
            )
        elif "/commit/" in self.path:
            for line in body.decode().splitlines():
                row = json.loads(line)
                if row["key"] == "file":
                    state["files"][row["value"]["path"]] = base64.b64decode(row["value"]["content"])
            self._answer(
                {"commitUrl": f"http://{self.headers['Host']}/me/mine/commit/abc", "commitOid": "abc"}
            )
        else:
            self._answer({})


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.state = {"files": {}, "tokens": set(), "private": True, "created": None}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def test_push_sends_model_tokenizer_and_card_to_a_private_repository(lora_run, hub):
    environment = {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_TOKEN": "hf_secret", "HF_HUB_OFFLINE": "0",
        "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    result = run_recipe(
        "merge_adapter", "adapter=run", "out=pushed", "push=true", "repo_id=me/mine", cwd=lora_run, environment=environment
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert hub.state["created"].get("visibility") == "private" and hub.state["created"]["name"] == "mine"
    assert hub.state["tokens"] == {"Bearer hf_secret"}
    assert hub.state["files"] == {p.name: p.read_bytes() for p in (lora_run / "pushed").iterdir()}
    assert {"model.safetensors", "tokenizer.json", "README.md", "config.json"} <= hub.state["files"].keys()
    assert "pushed:" in result.stdout and "hf_secret" not in result.stdout + result.stderr


def test_a_private_push_into_a_public_repository_is_refused(hub, tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "config.json").write_text("{}")
    hub.state["private"] = False
    with pytest.raises(UserError, match="exists and is public"):
        push(tmp_path, "me/mine", private=True)
    assert not hub.state["files"]
    push(tmp_path, "me/mine", private=False)
    assert hub.state["files"] == {"config.json": b"{}"}
    hub.shutdown()
    hub.server_close()
    with pytest.raises(UserError, match="the Hub refused"):
        push(tmp_path, "me/mine", private=False)


def test_a_full_model_is_copied(tiny_random_model, tmp_path):
    model, tokenizer = tiny_random_model()
    model.save_pretrained(tmp_path / "final")
    tokenizer.save_pretrained(tmp_path / "final")
    (tmp_path / "final/state.pt").write_text("")
    assert export(tmp_path / "final", None, tmp_path / "out", "auto", "cpu") is None
    copied, original = ({p.name for p in (tmp_path / name).iterdir()} for name in ("out", "final"))
    assert copied == original - {"state.pt"} | {"merge.json"} and "model.safetensors" in copied
    require_replaceable(tmp_path / "out", tmp_path / "final", None)  # what we wrote may be written again
    assert ModelConfig(name="x", path=str(tmp_path / "out")).local_path.is_dir()
