#!/usr/bin/env python3
"""Our model against transformers': logits, every gradient, ten AdamW steps, and the way back.

usage: tests/interop/hugging_face_test.py MODEL [--seeds N]

MODEL: a name of models.py. Each seed draws sizes and weights anew; nothing is stored.

Where transformers itself departs from what a model's authors published, the comparison stays within what both mean:
  * DeepSeek's norms of latent vectors have epsilon 1e-6 there whatever rms_norm_eps says: models.correct() gives them
    the config's, as Megatron does; an import says it in a note.
  * DeepSeek-V2's norm_topk_prob is read nowhere there: an import refuses it when it is true.
  * Masked groups get probability 0 there and could be chosen if fewer experts are left than a token takes; models.py
    leaves enough. DeepSeek-V3 sums a group's best two whatever top_k is: an import refuses other quotients.
  * The gated delta rule in chunks loses the digits of tiny gradients of decays there: models.correct() puts its own form
    token by token in its place.
  * The balancing loss there is over all layers' tokens at once: no comparison uses it. Ours is tested against its closed
    form in tests/ops/router_test.cpp.
  * Indexers of sparse attention have no gradient there and get no step: ours is zero, and their weights decay, which
    changes no order of scores. Of equal scores transformers takes any: models.py has heads enough to avoid them.
"""
import argparse
import copy
import json
import shutil
import struct
import sys
import tempfile
from pathlib import Path

from command import ROOT, Checks, need_transformers, relative, run, skip

try:
    import numpy as np
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    skip(f"{error.name} is not installed (make test installs it)")

need_transformers(transformers.__version__)
import models  # noqa: E402

sys.path.insert(0, str(ROOT / "tools/golden"))
from data_order import gpt_index  # noqa: E402

LOGITS, GRADIENTS, STEPS = 1e-5, 1e-4, 1e-5
WEIGHT_DECAY, BETAS, EPSILON, RATE, CLIP = 0.1, (0.9, 0.95), 1e-8, 2e-3, 1.0


def tensors_of(folder):
    """Every tensor of a folder by the name that it has in its file."""
    found = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        found.update(load_file(file))
    return found


def named_on_disk(model, values, folder):
    """`values` by parameter, under the names and in the layout that save_pretrained gives to parameters."""
    carrier = copy.deepcopy(model)
    by_name = dict(carrier.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            by_name[name].copy_(value)
    carrier.save_pretrained(folder)
    return tensors_of(folder)


def forward_and_gradients(model, ids, work):
    logits = model(input_ids=ids).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
    on_disk = named_on_disk(model, gradients, work / "gradients")
    model.zero_grad(set_to_none=True)
    return logits.detach(), loss.item(), {k: v for k, v in on_disk.items() if not k.endswith(models.EXPERT_BIASES)}


def compare_pass(model, folder, ids, checks, work, what):
    """Logits, loss and every gradient of `folder` (Hugging Face's or ours) against the model in memory."""
    save_file({"input_ids": ids}, work / "ids.safetensors")
    run("checkpoint", "logits", folder, "--tokens", work / "ids.safetensors", "--out", work / "ours.safetensors",
        "--gradients")
    ours = load_file(work / "ours.safetensors")
    logits, loss, gradients = forward_and_gradients(model, ids, work)
    checks.near("logits", relative(ours["logits"], logits), LOGITS, f"{what}: logits")
    checks.near("loss", abs(ours["loss"].item() - loss) / loss, LOGITS, f"{what}: loss")
    extra = set(ours) - {"logits", "loss"} - set(gradients)
    # A tied output weight is one parameter: its gradient stands once, under the embedding's name.
    missing = set(gradients) - set(ours) - ({"lm_head.weight"} if model.config.tie_word_embeddings else set())
    checks.that(not extra and not missing, f"{what}: gradients differ in name: {sorted(extra)} {sorted(missing)}")
    for name in set(gradients) & set(ours):
        checks.near("gradient", relative(ours[name], gradients[name]), GRADIENTS, f"{what}: gradient of {name}")


def write_dataset(prefix, documents):
    """Megatron's .bin and .idx."""
    lengths = np.array([len(d) for d in documents], dtype=np.int32)
    np.concatenate(documents).astype(np.int32).tofile(f"{prefix}.bin")
    with open(f"{prefix}.idx", "wb") as out:
        out.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, len(documents), len(documents) + 1))
        out.write(lengths.tobytes())
        out.write((4 * (np.cumsum(lengths, dtype=np.int64) - lengths)).tobytes())
        out.write(np.arange(len(documents) + 1, dtype=np.int64).tobytes())


def sample_order(documents, seq, wanted, seed):
    """The samples that a run takes, by the independent rules of tools/golden/data_order.py."""
    lengths = np.array([len(d) for d in documents], dtype=np.int32)
    _, _, order, _, shuffle = gpt_index(lengths, 0, len(documents), seq, wanted, seed, False)
    stream = np.concatenate([documents[int(d)] for d in order])
    return [torch.tensor(stream[int(s) * seq:int(s) * seq + seq + 1], dtype=torch.long) for s in shuffle]


def torch_losses(model, samples, batch, steps):
    """The same training by torch: decay on matrices alone, clipping to norm 1."""
    model = copy.deepcopy(model).train()
    is_plain = lambda name, p: p.ndim == 1 or "bias" in name or "sinks" in name or name.endswith("A_log")  # a vector
    plain = [p for name, p in model.named_parameters() if is_plain(name, p)]
    decayed = [p for name, p in model.named_parameters() if not is_plain(name, p)]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": WEIGHT_DECAY},
                                   {"params": plain, "weight_decay": 0.0}], lr=RATE, betas=BETAS, eps=EPSILON)
    losses = []
    for step in range(steps):
        tokens = torch.stack(samples[step * batch:(step + 1) * batch])
        logits = model(input_ids=tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def own_rounding(model, samples, batch, steps):
    """How far torch's fp32 losses, on one thread and on all, lie from its own in fp64: where a token's expert is chosen by
    less than rounding, they part by more than any bound on arithmetic (seen: 2.5e-5 between one thread and two)."""
    exact = torch_losses(copy.deepcopy(model).double(), samples, batch, steps)
    threads = torch.get_num_threads()
    spread = [0.0] * steps
    for count in (1, threads):
        torch.set_num_threads(count)
        losses = torch_losses(model, samples, batch, steps)
        spread = [max(old, abs(a - b) / abs(b)) for old, a, b in zip(spread, losses, exact)]
    torch.set_num_threads(threads)
    return spread


def compare_training(model, checkpoint, checks, work, seed):
    """Ten steps of `primus-cli train pretrain` from the imported weights."""
    steps, batch, seq, data_seed = 10, 4, 24, 1234
    generator = np.random.default_rng(seed)
    vocab = model.config.vocab_size
    documents = [generator.integers(0, vocab, int(n)) for n in generator.integers(30, 200, 40)]
    write_dataset(work / "data", documents)
    # torch's side has no rule for expert biases: they stand still.
    has_biases = model.config.model_type == "lfm2_moe" or (hasattr(model.config, "n_group") and
                                                           model.config.model_type != "deepseek_v2")
    biases = ["--moe_router_bias_update_rate", 0.0] if has_biases else []
    run("train", "pretrain", "--config", checkpoint / "experiment.yaml", "--load", checkpoint, "--finetune", "true",
        "--train_data_path", work / "data", "--tokenizer_type", "NullTokenizer", "--vocab_size", vocab, "--seq_length", seq,
        "--train_iters", steps, "--global_batch_size", batch, "--micro_batch_size", 2, "--lr", RATE, "--min_lr", 0.0,
        "--lr_decay_style", "constant", "--lr_warmup_iters", 0, "--weight_decay", WEIGHT_DECAY, "--adam_beta1", BETAS[0],
        "--adam_beta2", BETAS[1], "--adam_eps", EPSILON, "--clip_grad", CLIP, "--bf16", "false", "--log_interval", 1,
        "--eval_iters", 0, "--seed", data_seed, "--dataloader_type", "single", *biases, cwd=work)
    metrics = next(work.glob("output/**/metrics.jsonl"))
    ours = [record["lm_loss"] for record in map(json.loads, metrics.read_text().splitlines()) if "lm_loss" in record]
    samples = sample_order(documents, seq, steps * batch, data_seed)
    theirs = torch_losses(model, samples, batch, steps)
    checks.that(len(ours) == steps, f"{len(ours)} losses of {steps} steps")
    rounding = 0.0
    for step, (a, b, own) in enumerate(zip(ours, theirs, own_rounding(model, samples, batch, steps))):
        rounding = max(rounding, own)
        checks.near("step loss", abs(a - b) / abs(b), max(STEPS, 2 * rounding), f"AdamW step {step + 1}")


def meaningful(config):
    """What AutoConfig reads of a folder, without who wrote it."""
    fields = transformers.AutoConfig.from_pretrained(config).to_dict()
    for name in ("transformers_version", "_name_or_path"):
        fields.pop(name, None)
    return fields


def compare_way_back(model, original, checkpoint, checks, work):
    """Export: the same bytes under the same names, and a folder that transformers loads."""
    run("checkpoint", "export", "--from", checkpoint, "--to", work / "back", "--max-shard-size", "40KB")
    before, after = tensors_of(original), tensors_of(work / "back")
    checks.that(set(before) == set(after), f"export: names differ: {sorted(set(before) ^ set(after))}")
    for name, tensor in before.items():
        same = tensor.dtype == after[name].dtype and torch.equal(tensor.view(torch.uint8), after[name].view(torch.uint8))
        checks.that(same, f"export: {name} is not byte-equal")
    checks.that(meaningful(original) == meaningful(work / "back"), "export: config.json differs")
    loaded = models.correct(transformers.AutoModelForCausalLM.from_pretrained(
        work / "back", attn_implementation="eager", experts_implementation="eager", dtype=torch.float32))
    ids = torch.arange(12)[None]
    same = torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    checks.that(same, "export: transformers' own logits differ")


def compare_types(original, checks, work):
    """Conversions of whole checkpoints: each value rounded as torch rounds it."""
    for word, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        run("checkpoint", "import", "--from", original, "--to", work / word, "--dtype", word)
        run("checkpoint", "export", "--from", work / word, "--to", work / f"back_{word}")
        after = tensors_of(work / f"back_{word}")
        for name, tensor in tensors_of(original).items():
            expected = tensor if name.endswith(models.EXPERT_BIASES) else tensor.to(dtype)
            checks.that(torch.equal(expected, after[name]), f"{word}: {name} is rounded otherwise")


def released_kimi(config):
    """config.json as the released models have it."""
    kinds = config.pop("layer_types")
    numbers = {kind: [i + 1 for i, k in enumerate(kinds) if k == kind] for kind in set(kinds)}
    config["linear_attn_config"] = {
        "kda_layers": numbers["linear_attention"], "full_attn_layers": numbers["full_attention"],
        "num_heads": config.pop("linear_num_heads"), "head_dim": config.pop("linear_head_dim"),
        "short_conv_kernel_size": config.pop("linear_conv_kernel_dim")}
    config["first_k_dense_replace"] = config.pop("mlp_layer_types").index("sparse")
    return dict(config, mla_use_nope=True, moe_layer_freq=1, moe_router_activation_func="sigmoid", rope_theta=10000.0,
                rope_scaling=None, use_grouped_topk=True, num_nextn_predict_layers=0, torch_dtype=config.pop("dtype"))


def older_spelling(folder, target):
    """config.json as transformers 4 wrote it."""
    shutil.copytree(folder, target)
    path = target / "config.json"
    config = json.loads(path.read_text())
    if config["model_type"] == "kimi_linear":
        path.write_text(json.dumps(released_kimi(config)))
        return
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else dict(rope, type=kind)
    config["torch_dtype"] = config.pop("dtype")
    if "num_local_experts" in config and config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    path.write_text(json.dumps(config))


def settings_of(checkpoint):
    settings = json.loads((checkpoint / "experiment.json").read_text())["settings"]
    return {key: setting["value"] for key, setting in settings.items()}


def compare_conversion(name, seed, checks, work):
    """What needs no layers: import, export, types, both spellings of config.json."""
    model = models.make(name, seed)
    original = work / "original"
    model.save_pretrained(original, max_shard_size="30KB" if seed % 2 else "1GB")
    run("checkpoint", "import", "--from", original, "--to", work / "ours", "--max-shard-size", "50KB")
    checks.that("every checksum fits" in run("checkpoint", "verify", work / "ours"), "verify")
    older_spelling(original, work / "older")
    run("checkpoint", "import", "--from", work / "older", "--to", work / "ours_older")
    ours, older = settings_of(work / "ours"), settings_of(work / "ours_older")
    checks.that(ours == older, f"config.json of transformers 4 reads otherwise: "
                f"{[k for k in ours if ours.get(k) != older.get(k)]}")
    compare_way_back(model, original, work / "ours", checks, work)
    compare_types(original, checks, work)
    return model, original


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(models.MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--conversion-only", action="store_true")
    words = parser.parse_args()
    transformers.logging.set_verbosity_error()
    checks = Checks()
    reason = models.NOT_RUNNABLE.get(words.model)
    for seed in range(words.first_seed, words.first_seed + words.seeds):
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            model, original = compare_conversion(words.model, seed, checks, work)
            if reason or words.conversion_only:
                continue
            ids = torch.randint(0, model.config.vocab_size, (2, 21), generator=torch.Generator().manual_seed(seed))
            compare_pass(model, original, ids, checks, work, "Hugging Face folder")
            compare_pass(model, work / "ours", ids, checks, work, "checkpoint")
            compare_training(model, work / "ours", checks, work, seed)
    checks.report(f"{words.model}, {words.seeds} seeds")
    if reason:
        print(f"conversion only, no pass of ours: {reason}")


if __name__ == "__main__":
    main()
