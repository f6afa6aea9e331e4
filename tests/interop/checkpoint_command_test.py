#!/usr/bin/env python3
"""The `checkpoint` commands as a user meets them: errors that name what is wrong, memory, damage, upcycling.

usage: tests/interop/checkpoint_command_test.py [CASE ...]
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from command import Checks, cli_path, need_transformers, relative, run, run_json, skip

try:
    import numpy as np
    import torch
    import transformers
    from safetensors import safe_open
    from safetensors.numpy import save_file as save_numpy
    from safetensors.torch import load_file, save_file
except ImportError as error:
    skip(f"{error.name} is not installed (make test installs it)")

need_transformers(transformers.__version__)
import models  # noqa: E402

SHARDED = "model.safetensors.index.json"


def tiny(work, name="llama", seed=1, **options):
    folder = work / f"{name}_{seed}"
    model = models.make(name, seed)
    model.save_pretrained(folder, **options)
    return model, folder


def edit_tensors(folder, change):
    """Rewrite model.safetensors after `change` worked on its dictionary."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def refused(folder, work, *parts, checks, command="import"):
    """The command must end with 2, write nothing, and say every one of `parts`."""
    out = run("checkpoint", command, "--from", folder, "--to", work / "refused", code=2)
    for part in parts:
        checks.that(part in out, f"'{part}' is not in\n{out}")
    checks.that(not (work / "refused").exists(), "a refused conversion left something")
    checks.that(not list(work.glob("refused.tmp*")), "a refused conversion left a temporary folder")


def wrong_tensors(checks, work):
    """Missing, extra, wrongly shaped, of a type without a meaning: all of them are named, in one run."""
    _, folder = tiny(work)

    def spoil(tensors):
        tensors["model.layers.0.mlp.extra.weight"] = torch.zeros(3)
        del tensors["model.layers.0.self_attn.q_proj.weight"], tensors["model.norm.weight"]
        tensors["model.layers.1.mlp.down_proj.weight"] = torch.zeros(2, 2)
        tensors["model.layers.1.input_layernorm.weight"] = tensors["model.layers.1.input_layernorm.weight"].to(torch.int64)

    edit_tensors(folder, spoil)
    refused(folder, work, "model.layers.0.self_attn.q_proj.weight: is missing", "model.norm.weight: is missing",
            "model.layers.0.mlp.extra.weight: belongs to no parameter",
            "model.layers.1.mlp.down_proj.weight: has another shape",
            "found [2, 2]", "model.layers.1.input_layernorm.weight: cannot be converted", checks=checks)


def doubly_mapped(checks, work):
    _, folder = tiny(work, max_shard_size="20KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    checks.that(len(shards) > 2, "more than two shards")
    first, second = load_file(shards[0]), load_file(shards[1])
    name = next(iter(first))
    second[name] = first[name]
    save_file(second, shards[1], {"format": "pt"})
    refused(folder, work, f"{name}: is in two files", checks=checks)


def pickled(checks, work):
    model, folder = tiny(work)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    refused(folder, work, "pickled weights, which are never read", "pytorch_model.bin", "save_pretrained", checks=checks)


def wrong_configs(checks, work):
    _, folder = tiny(work)
    path = folder / "config.json"
    good = json.loads(path.read_text())
    path.write_text(json.dumps(dict(good, some_new_idea=3, mlp_bias=True)))
    refused(folder, work, "some_new_idea: is a field whose meaning is not known here", "mlp_bias", checks=checks)
    path.write_text(json.dumps(dict(good, model_type="bert")))
    refused(folder, work, "model_type: is not converted", "deepseek_v2", checks=checks)
    path.unlink()
    refused(folder, work, "config.json", checks=checks)


def targets(checks, work):
    _, folder = tiny(work)
    run("checkpoint", "import", "--from", folder, "--to", work / "ours")
    out = run("checkpoint", "import", "--from", folder, "--to", work / "ours", code=2)
    checks.that("exists already" in out, out)
    answer = run_json("checkpoint", "import", "--from", folder, "--to", work / "dry", "--dry-run", "--dtype", "bf16")
    checks.that(answer["done"] is False and answer["types"] == "BF16" and not (work / "dry").exists(), str(answer))
    for words in (["--dtype", "int8"], ["--max-shard-size", "many"], ["--max-shard-size", "0"]):
        run("checkpoint", "import", "--from", folder, "--to", work / "dry", *words, code=2)
    info = run_json("checkpoint", "info", work / "ours")
    count = sum(t.numel() for t in load_file(folder / "model.safetensors").values())
    checks.that(info["parameters"] == count and info["architecture"] == "llama", str(info))
    checks.that(run_json("checkpoint", "info", folder)["parameters"] == count, "info of a Hugging Face folder")
    # A folder that cannot be written fails while running, and leaves nothing behind.
    if os.geteuid() != 0:
        (work / "closed").mkdir(mode=0o555)
        run("checkpoint", "import", "--from", folder, "--to", work / "closed/ours", code=1)
    out = run("checkpoint", "logits", work / "ours", "--tokens", work / "none", "--out", work / "x", code=2)
    checks.that("cannot be opened" in out, out)
    for ids in (torch.tensor([[0, 10**6]]), torch.tensor([[-1, 0]]), torch.zeros(3, dtype=torch.int64), torch.zeros(1, 2)):
        save_file({"input_ids": ids}, work / "ids.safetensors")
        out = run("checkpoint", "logits", work / "ours", "--tokens", work / "ids.safetensors", "--out", work / "x", code=2)
        checks.that("input_ids" in out and not (work / "x").exists(), out)


def overflow(checks, work):
    _, folder = tiny(work)
    edit_tensors(folder, lambda tensors: tensors["model.norm.weight"].fill_(1e6))
    out = run("checkpoint", "import", "--from", folder, "--to", work / "half", "--dtype", "fp16", code=1)
    checks.that("model.norm.weight" in out and "too large for fp16" in out, out)
    checks.that(not (work / "half").exists() and not list(work.glob("half.tmp*")), "left something")


def damage(checks, work):
    """One flipped bit in each tensor, and cuts: refused, by name."""
    _, folder = tiny(work)
    run("checkpoint", "import", "--from", folder, "--to", work / "ours")
    file = work / "ours/weights.safetensors"
    whole = bytearray(file.read_bytes())
    header = int.from_bytes(whole[:8], "little")
    for number, (name, entry) in enumerate(json.loads(whole[8:8 + header]).items()):
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        place = 8 + header + begin + (number * 7919) % (end - begin)
        whole[place] ^= 1 << number % 8
        file.write_bytes(whole)
        out = run("checkpoint", "verify", work / "ours", code=1)
        checks.that(f"{name}: the checksum does not fit" in out, out)
        whole[place] ^= 1 << number % 8
    for length in range(0, len(whole), 4096):
        file.write_bytes(whole[:length])
        checks.that(str(file) in run("checkpoint", "verify", work / "ours", code=1), f"cut to {length} bytes")
    file.write_bytes(whole)
    run("checkpoint", "verify", work / "ours")
    # An export of damaged weights fails while running and leaves nothing.
    whole[-5] ^= 4
    file.write_bytes(whole)
    out = run("checkpoint", "export", "--from", work / "ours", "--to", work / "back", code=1)
    checks.that("the checksum does not fit" in out and not (work / "back").exists(), out)


def multi_token_layers(checks, work):
    """A prediction depth behind the last layer comes whole, or each tensor that is missing or misshapen is named."""
    _, folder = tiny(work, "deepseek_v3")
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    name = f"model.layers.{layers}.eh_proj.weight"
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(4, 8)}))
    out = run("checkpoint", "import", "--from", folder, "--to", work / "ours", code=2)
    checks.that(f"{name}: has another shape" in out and f"model.layers.{layers}.enorm.weight: is missing" in out, out)
    checks.that(not (work / "ours").exists(), "a refused import leaves nothing")


def write_many_shards(folder, num_layers, hidden, ffn):
    """A Llama-shaped model of one shard a layer, written without holding more than one."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    sizes = {"q_proj": (hidden, hidden), "k_proj": (hidden, hidden), "v_proj": (hidden, hidden), "o_proj": (hidden, hidden)}
    index, shards = {}, num_layers + 1
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}."
        tensors = {f"{prefix}self_attn.{n}.weight": rng.random(s, dtype=np.float32) for n, s in sizes.items()}
        for n, s in (("gate_proj", (ffn, hidden)), ("up_proj", (ffn, hidden)), ("down_proj", (hidden, ffn))):
            tensors[f"{prefix}mlp.{n}.weight"] = rng.random(s, dtype=np.float32)
        for n in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{n}.weight"] = np.ones(hidden, np.float32)
        name = f"model-{layer + 1:05}-of-{shards:05}.safetensors"
        save_numpy(tensors, folder / name, {"format": "pt"})
        index.update({tensor: name for tensor in tensors})
    last = f"model-{shards:05}-of-{shards:05}.safetensors"
    tail = {n: rng.random((256, hidden), dtype=np.float32) for n in ("model.embed_tokens.weight", "lm_head.weight")}
    tail["model.norm.weight"] = np.ones(hidden, np.float32)
    save_numpy(tail, folder / last, {"format": "pt"})
    index.update({tensor: last for tensor in tail})
    (folder / SHARDED).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    transformers.LlamaConfig(vocab_size=256, hidden_size=hidden, num_hidden_layers=num_layers, num_attention_heads=8,
                             num_key_value_heads=8, intermediate_size=ffn, architectures=["LlamaForCausalLM"],
                             dtype="float32").save_pretrained(folder)


# A process's peak begins with that of the process that forked it: a small one has to stand between torch and the program.
MEASURE = """
import os, sys
silent = (os.POSIX_SPAWN_OPEN, 1, '/dev/null', os.O_WRONLY, 0)
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[silent])
_, status, usage = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)
"""


def peak_bytes(*words):
    command = [sys.executable, "-S", "-c", MEASURE, str(cli_path()), *map(str, words)]
    code, peak = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    if code != 0:
        sys.exit(f"{words} ended with {code}")
    return peak


def memory(checks, work):
    """A model of 24 shards of 28 MB: converting needs less than one shard above what the program itself needs."""
    if os.environ.get("PRIMUS_SANITIZED"):
        return print("memory: not measured, a sanitizer keeps freed memory")
    hidden, ffn, layers = 768, 2048, 24
    write_many_shards(work / "big", layers, hidden, ffn)
    shard = (work / "big/model-00001-of-00025.safetensors").stat().st_size
    floor = peak_bytes("checkpoint", "info", work / "big")
    for name, words in (("import", ["--from", work / "big", "--to", work / "ours", "--dtype", "bf16"]),
                        ("export", ["--from", work / "ours", "--to", work / "back", "--dtype", "fp32"])):
        peak = peak_bytes("checkpoint", name, *words)
        print(f"{name}: peak {peak / 1e6:.1f} MB, the program alone {floor / 1e6:.1f} MB, a shard {shard / 1e6:.1f} MB")
        checks.that(peak - floor < shard, f"{name}: {peak - floor} bytes above {floor}, a shard is {shard}")
    with safe_open(work / "back/model.safetensors", "np") as back, safe_open(
            work / "big/model-00007-of-00025.safetensors", "np") as original:
        name = "model.layers.6.mlp.down_proj.weight"
        expected = torch.tensor(original.get_tensor(name)).bfloat16().float().numpy()
        checks.that(np.array_equal(back.get_tensor(name), expected), "the converted values")


def logits_of(folder, ids, work):
    save_file({"input_ids": ids}, work / "ids.safetensors")
    run("checkpoint", "logits", folder, "--tokens", work / "ids.safetensors", "--out", work / "out.safetensors")
    return load_file(work / "out.safetensors")["logits"]


def upcycled(checks, work):
    """Step-0 logits of a dense model and of the one made of it, and the same model in transformers."""
    model, folder = tiny(work, seed=2)
    layers, vocab = model.config.num_hidden_layers, model.config.vocab_size
    run("checkpoint", "import", "--from", folder, "--to", work / "dense")
    ids = torch.randint(0, vocab, (2, 19), generator=torch.Generator().manual_seed(3))
    dense = logits_of(work / "dense", ids, work)
    patterns = {"all": "1", "mixed": f"([0]*1+[1]*{layers - 1})"}
    for name, pattern in patterns.items():
        for top_k in (2, 3):
            target = work / f"{name}_{top_k}"
            run("checkpoint", "upcycle", "--from", work / "dense", "--to", target, "--num-experts", 4, "--topk", top_k,
                "--moe-layer-freq", pattern)
            checks.near("upcycled logits", relative(logits_of(target, ids, work), dense), 1e-5, f"{name}, top {top_k}")
    run("checkpoint", "upcycle", "--from", work / "dense", "--to", work / "noisy", "--num-experts", 4, "--noise-std", 0.1,
        "--drop-fraction", 0.25, "--seed", 5)
    checks.that(relative(logits_of(work / "noisy", ids, work), dense) > 1e-4, "noise and drops changed nothing")
    run("checkpoint", "export", "--from", work / "all_2", "--to", work / "mixtral")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(work / "mixtral", attn_implementation="eager",
                                                               experts_implementation="eager", dtype=torch.float32)
    checks.that(type(loaded).__name__ == "MixtralForCausalLM", type(loaded).__name__)
    checks.near("exported logits", relative(loaded(input_ids=ids).logits.detach(), dense), 1e-5, "as a Mixtral")
    out = run("checkpoint", "upcycle", "--from", work / "all_2", "--to", work / "x", "--num-experts", 4, code=2)
    checks.that("starts from a dense model" in out, out)
    for words in (["--num-experts", 4, "--topk", 5], ["--num-experts", 4, "--granularity", 3], ["--num-experts", 0],
                  ["--num-experts", 4, "--topk", 1], ["--num-experts", 4, "--moe-layer-freq", "[1]*99"]):
        run("checkpoint", "upcycle", "--from", work / "dense", "--to", work / "x", *words, code=2)
    train_upcycled(checks, work, folder)


def train_words(checkpoint, work, *more):
    return ["train", "pretrain", "--config", checkpoint / "experiment.yaml", "--mock_data", "--tokenizer_type",
            "NullTokenizer", "--seq_length", 16, "--train_iters", 1, "--global_batch_size", 2, "--micro_batch_size", 2,
            "--bf16", "false", "--lr", 1e-6, "--min_lr", 0.0, "--lr_warmup_iters", 0, "--eval_iters", 0, "--save", "null",
            *more]


def first_loss(words, work):
    shutil.rmtree(work / "output", ignore_errors=True)
    run(*words, cwd=work)
    return json.loads(next(work.glob("output/**/metrics.jsonl")).read_text().splitlines()[0])["lm_loss"]


def train_upcycled(checks, work, folder):
    """`--load` of a checkpoint and of a Hugging Face folder, Megatron's keys, and upcycling while loading."""
    base = first_loss(train_words(work / "dense", work, "--load", work / "dense"), work)
    checks.that(first_loss(train_words(work / "dense", work, "--load", folder), work) == base, "a Hugging Face folder")
    checks.that(first_loss(train_words(work / "dense", work, "--pretrained_checkpoint", work / "dense"), work) == base,
                "pretrained_checkpoint")
    checks.that(first_loss(train_words(work / "dense", work), work) != base, "without weights")
    missing = train_words(work / "dense", work, "--load", work / "nothing")
    checks.that(first_loss([*missing, "--exit_on_missing_checkpoint", "false"], work) != base,
                "a load that is not there starts from random weights")
    out = run(*missing, code=2, cwd=work)  # the preset asks for an end
    checks.that("exit_on_missing_checkpoint" in out, out)
    out = run(*train_words(work / "dense", work, "--load", work / "dense", "--finetune", "false"), code=2, cwd=work)
    checks.that("no_load_optim" in out, out)
    out = run(*train_words(work / "dense", work, "--load", work / "dense", "--num_layers", 1), code=2, cwd=work)
    checks.that("decoder.layers.1.input_layernorm.weight: is a parameter that the experiment does not have" in out, out)
    upcycled_loss = first_loss(train_words(work / "mixed_2", work, "--load", work / "dense", "--moe_use_upcycling"), work)
    checks.near("upcycled loss", abs(upcycled_loss - base) / base, 1e-6, "moe_use_upcycling")


CASES = {f.__name__: f for f in (wrong_tensors, doubly_mapped, pickled, wrong_configs, targets, overflow, damage,
                                 multi_token_layers, memory, upcycled)}


def main():
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or CASES:
        checks = Checks()
        with tempfile.TemporaryDirectory() as folder:
            CASES[name](checks, Path(folder))
        checks.report(name)


if __name__ == "__main__":
    main()
