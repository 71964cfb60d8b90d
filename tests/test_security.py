"""What docs/security.md promises about the code: nothing here unpickles, evaluates or goes through a shell."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import torch
from helpers import adapted
from safetensors import safe_open

from pte_cli.errors import UsageError
from pte_cli.model.adapter import load_adapter
from pte_cli.testing.models import causal_lm

ROOT = Path(__file__).parent.parent
FILES = sorted(file for folder in ("pte_cli", "plugins", "benchmarks") for file in (ROOT / folder).rglob("*.py"))
UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml"}
"""Modules that make objects, or run code, from bytes."""


def risks(tree: ast.AST):
    """(line, what) of everything in a module that could run code from data."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from ((node.lineno, f"import {name}") for name in names if name.split(".")[0] in UNPICKLERS)
        if not isinstance(node, ast.Call):
            continue
        called, given = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
        if called in ("eval", "exec", "compile", "__import__", "os.system", "os.popen"):
            yield node.lineno, called
        if called == "torch.load" and given.get("weights_only") != "True":
            yield node.lineno, "torch.load without weights_only"
        if called.rpartition(".")[2] == "load" and given.get("allow_pickle") == "True":
            yield node.lineno, "arrays of objects"
        if given.get("shell", "False") != "False":
            yield node.lineno, "a shell"
        if called == "AutoModelForCausalLM.from_pretrained" and given.get("use_safetensors") != "True":
            yield node.lineno, "weights that may be pickled"


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_nothing_runs_code_from_data(file):
    assert list(risks(ast.parse(file.read_text()))) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from yaml import load",
        "eval('1')",
        "exec(text)",
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "np.load(file, allow_pickle=True)",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
        "AutoModelForCausalLM.from_pretrained(name)",
    ],
)
def test_what_is_looked_for_is_found(line):
    assert len(list(risks(ast.parse(line)))) == 1


def test_an_adapter_is_safetensors_only(tmp_path):
    """PEFT itself would also take adapter_model.bin, and ask the hub where there is neither."""
    adapted("pte").model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "adapter_model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    torch.save(tensors, tmp_path / "adapter_model.bin")
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"it has no adapter_model.safetensors"):
        load_adapter(causal_lm(), tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**settings, "peft_type": "LORA"}))
    with pytest.raises(UsageError, match="is of PEFT's kind 'LORA'; one that pte train wrote is needed"):
        load_adapter(causal_lm(), tmp_path)


def test_an_adapter_of_another_model_does_not_load(tmp_path):
    adapted("pte").model.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"does not fit the model \(.*size mismatch.*use the model it was trained on"):
        load_adapter(causal_lm(hidden=48), tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(UsageError, match="can't be read"):
        load_adapter(causal_lm(), tmp_path)
