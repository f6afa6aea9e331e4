#!/usr/bin/env python3
"""checkpoint diff, average, prune, export and logits, on models of transformers and on checkpoints that training wrote.

usage: tests/interop/checkpoint_tools_test.py [CASE ...]
"""
import shutil
import sys
import tempfile
from pathlib import Path

from command import Checks, need_transformers, relative, run, run_json, skip

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    skip(f"{error.name} is not installed (make test installs it)")

need_transformers(transformers.__version__)
import models  # noqa: E402


def tiny(work, name="mixtral", seed=1):
    folder = work / f"{name}_{seed}"
    model = models.make(name, seed)
    model.save_pretrained(folder)
    return model, folder


def differences(checks, work):
    """A model beside its import, a rounded one, and one with known changes."""
    _, folder = tiny(work)
    run("checkpoint", "import", "--from", folder, "--to", work / "ours")
    run("checkpoint", "import", "--from", folder, "--to", work / "half", "--dtype", "bf16")
    answer = run_json("checkpoint", "diff", folder, work / "ours")
    checks.that(answer["equal"] and answer["equal_tensors"] > 10 and not answer["tensors"], str(answer))
    answer = run_json("checkpoint", "diff", work / "ours", work / "half", code=1)
    checks.that(all(t["difference"] == "other type" and t["relative"] is None or t["relative"] < 3e-3
                    for t in answer["tensors"]), str(answer)[:500])
    checks.that(run_json("checkpoint", "diff", work / "ours", work / "half", "--tolerance", "4e-3")["equal"], "tolerance")
    shutil.copytree(folder, work / "changed")
    tensors = load_file(folder / "model.safetensors")
    change = torch.zeros_like(tensors["model.norm.weight"])
    change[3] = 0.25
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + change
    save_file(tensors, work / "changed/model.safetensors", {"format": "pt"})
    answer = run_json("checkpoint", "diff", folder, work / "changed", code=1)
    (entry,) = answer["tensors"]
    checks.that(entry["name"] == "decoder.final_layernorm.weight" and entry["different"] == 1, str(entry))
    checks.near("largest difference", abs(entry["largest"] - 0.25), 1e-6, "norm")
    expected = 0.25 / tensors["model.norm.weight"].double().norm().item()
    checks.near("relative difference", abs(entry["relative"] - expected) / expected, 1e-6, "norm")
    out = run("checkpoint", "diff", folder, work / "nothing", code=2)
    checks.that("is no folder" in out, out)


def averages(checks, work):
    """The mean beside torch's, in fp32 and rounded to bf16; shapes that differ are refused."""
    folders = []
    first, folder = tiny(work, seed=1)
    states = [first.state_dict()]
    folders.append(folder)
    for seed in (2, 3):
        torch.manual_seed(seed)
        other = type(first)(first.config)
        other.save_pretrained(work / f"other_{seed}")
        states.append(other.state_dict())
        folders.append(work / f"other_{seed}")
    for name, words, shares in (("even", [], [1 / 3] * 3), ("uneven", ["--weights", 1, 2, 5], [0.125, 0.25, 0.625])):
        run("checkpoint", "average", "--from", *folders, "--to", work / name, *words)
        run("checkpoint", "export", "--from", work / name, "--to", work / f"{name}_hf")
        loaded = type(first).from_pretrained(work / f"{name}_hf", dtype=torch.float32).state_dict()
        for key, value in loaded.items():
            mean = sum(share * state[key].double() for share, state in zip(shares, states))
            checks.that(torch.equal(value, mean.float()) or relative(value, mean) < 1e-7, key)
    run("checkpoint", "average", "--from", *folders, "--to", work / "bf16", "--dtype", "bf16")
    checks.that(run_json("checkpoint", "info", work / "bf16")["types"].startswith("BF16"), "types")
    checks.that(run_json("checkpoint", "info", work / "bf16")["made_by"] == "average", "made_by")
    _, strange = tiny(work, "llama", 9)
    out = run("checkpoint", "average", "--from", folders[0], strange, "--to", work / "x", code=2)
    checks.that("is missing" in out and not (work / "x").exists(), out)
    for words in (["--weights", 1, 2], ["--weights", 0, 0, 0], ["--weights", -1, 1, 1], ["--last", 2]):
        run("checkpoint", "average", "--from", *folders, "--to", work / "x", *words, code=2)


def train(work, checkpoint, steps, *more):
    run("train", "pretrain", "--config", checkpoint / "experiment.yaml", "--mock_data", "--tokenizer_type",
        "NullTokenizer", "--seq_length", 16, "--train_iters", steps, "--global_batch_size", 2, "--micro_batch_size", 2,
        "--bf16", "false", "--lr", 1e-3, "--min_lr", 0.0, "--lr_warmup_iters", 0, "--eval_iters", 0, "--load", checkpoint,
        "--save", work / "runs", "--save_interval", 2, "--exp_name", "tools", *more, cwd=work)


def trained(checks, work):
    """Checkpoints of a run: exported and loaded by transformers they compute what `checkpoint logits` says; diff, average
    and prune on the run's folder."""
    model, folder = tiny(work)
    run("checkpoint", "import", "--from", folder, "--to", work / "ours")
    train(work, work / "ours", 6)
    runs = work / "runs"
    checks.that(run_json("checkpoint", "info", runs)["iterations"] == [2, 4, 6], "three checkpoints")
    ids = torch.randint(0, model.config.vocab_size, (2, 13), generator=torch.Generator().manual_seed(3))
    save_file({"input_ids": ids}, work / "ids.safetensors")
    for step in (2, 6):
        source = runs / f"iter_{step:07}"
        target = work / f"hf_{step}"
        run("checkpoint", "export", "--from", source, "--to", target)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(target, attn_implementation="eager",
                                                                   experts_implementation="eager", dtype=torch.float32)
        theirs = loaded(input_ids=ids).logits.detach()
        run("checkpoint", "logits", source, "--tokens", work / "ids.safetensors", "--out", work / "out.safetensors")
        checks.near("logits", relative(load_file(work / "out.safetensors")["logits"], theirs), 1e-5, f"step {step}")
        checks.that(run_json("checkpoint", "diff", source, target)["equal"], "the export has the same weights")
    # A folder of checkpoints stands for its latest.
    run("checkpoint", "logits", runs, "--tokens", work / "ids.safetensors", "--out", work / "latest.safetensors")
    same = torch.equal(load_file(work / "latest.safetensors")["logits"], load_file(work / "out.safetensors")["logits"])
    checks.that(same, "logits of the run's folder")
    answer = run_json("checkpoint", "diff", runs / "iter_0000002", runs / "iter_0000006", code=1)
    parts = {entry["part"] for entry in answer["tensors"]}
    checks.that({"weight", "first_moment", "second_moment"} <= parts, str(parts))
    checks.that({"iteration", "consumed_samples"} <= {field["name"] for field in answer["training"]}, str(answer["training"]))
    mean_of_run(checks, work, runs)
    pruned(checks, work, runs)


def mean_of_run(checks, work, runs):
    run("checkpoint", "average", "--from", runs, "--last", 2, "--to", work / "mean")
    for step in (4, 6, "mean"):
        source = work / "mean" if step == "mean" else runs / f"iter_{step:07}"
        shutil.rmtree(work / f"hf_{step}", ignore_errors=True)
        run("checkpoint", "export", "--from", source, "--to", work / f"hf_{step}")
    four, six, mean = (load_file(work / f"hf_{step}/model.safetensors") for step in (4, 6, "mean"))
    for name, value in mean.items():
        checks.that(torch.equal(value, ((four[name].double() + six[name].double()) / 2).to(value.dtype)), name)
    train(work, work / "mean", 8, "--save", work / "again")  # the preset says finetune
    out = run("checkpoint", "average", "--from", runs, "--last", 9, "--to", work / "x", code=2)
    checks.that("1 to 3" in out, out)


def pruned(checks, work, runs):
    answer = run_json("checkpoint", "prune", runs, "--keep-last", 1, "--dry-run")
    checks.that(answer["removed"] == [2, 4] and not answer["done"], str(answer))
    checks.that(run_json("checkpoint", "info", runs)["iterations"] == [2, 4, 6], "a dry run removes nothing")
    shutil.copytree(runs, work / "copy", symlinks=True)
    file = work / "copy/iter_0000006/weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-7] ^= 1
    file.write_bytes(data)
    answer = run_json("checkpoint", "prune", work / "copy", "--keep-last", 1)
    checks.that(answer["removed"] == [2] and answer["newest_whole"] == 4 and len(answer["damaged"]) == 1, str(answer))
    run("checkpoint", "prune", runs, "--keep-last", 1)
    checks.that(run_json("checkpoint", "info", runs)["iterations"] == [6], "one stays")
    train(work, work / "ours", 8)  # and the run goes on from it
    checks.that(run_json("checkpoint", "info", runs)["iterations"] == [6, 8], "went on")
    run("checkpoint", "prune", work / "ours", "--keep-last", 1, code=2)
    run("checkpoint", "prune", runs, code=2)


CASES = {f.__name__: f for f in (differences, averages, trained)}


def main():
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or CASES:
        checks = Checks()
        with tempfile.TemporaryDirectory() as folder:
            CASES[name](checks, Path(folder))
        checks.report(name)


if __name__ == "__main__":
    main()
