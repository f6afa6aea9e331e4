#!/usr/bin/env python3
"""Speed of saving and loading, beside what the same disk gives to others.

  bench/checkpoint/speed.py [--bin DIR] [--gib 2] [--folder DIR] [--repeats 5]

Three parts, each in alternation so that a busy disk meets all of them:
  save    GB/s of primus-worker's checkpoint (fsync included), of `dd conv=fsync` with the same bytes, of torch.save and
          safetensors' save_file, each followed by fsync
  load    GB/s of a start from that checkpoint (checksums compared), of torch.load and safetensors' load_file, from a
          dropped page cache where the system lets us, else from a warm one, and it says which
  async   share of a step that a save beside training costs: median step time in a run that saves every few steps
          against one that does not
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

EXPERIMENT = """work_group: bench
user_name: bench
exp_name: {name}
workspace: {folder}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: deepseek_v2_tiny.yaml
    overrides:
      mock_data: true
      vocab_size: 4096
      num_layers: 4
      moe_layer_freq: ([0]*1+[1]*3)
      hidden_size: {hidden}
      ffn_hidden_size: {ffn}
      num_attention_heads: 4
      num_experts: 8
      moe_ffn_hidden_size: {hidden}
      moe_shared_expert_intermediate_size: {hidden}
      seq_length: 128
      max_position_embeddings: 128
      micro_batch_size: 1
      global_batch_size: 2
      train_iters: {iters}
      eval_iters: 0
      log_interval: 1
      bf16: false
      lr: 1.0e-4
      cross_entropy_loss_fusion: true
      auto_continue_train: {goes_on}
      save: {save}
      save_interval: {interval}
      save_keep_last: 1
      async_save: {beside}
"""


def run(cli, folder, name, **settings):
    values = {"folder": folder, "name": name, "goes_on": "false", "save": "null", "interval": 1000000,
              "beside": "false", **settings}
    file = pathlib.Path(folder) / f"{name}.yaml"
    file.write_text(EXPERIMENT.format(**values))
    start = time.perf_counter()
    done = subprocess.run([cli, "direct", "--", "train", "pretrain", "--config", file, "--device", "cpu"],
                          capture_output=True, text=True, env=dict(os.environ, OMP_WAIT_POLICY="passive"))
    if done.returncode != 0:
        sys.exit(done.stdout[-2000:] + done.stderr)
    lines = (pathlib.Path(folder) / "bench/bench" / name / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["elapsed_ms"] for line in lines if "lm_loss" in line]
    return done.stdout, steps, time.perf_counter() - start


def size_for(gib):
    """Hidden size whose state (weights, two moments, in fp32) has about so many GiB: 4 layers of 9 MLPs of 3 h^2."""
    parameters = gib * 2**30 / 12
    hidden = int((parameters / 100) ** 0.5) // 64 * 64
    return max(hidden, 64)


def saved(output):
    """Bytes and seconds of each save that the log tells of."""
    units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
    found = re.findall(r"saved the checkpoint of iteration \d+ to .* \(([\d.]+) (\w+) in ([\d.]+) s\)", output)
    return [(float(size) * units[unit], float(seconds)) for size, unit, seconds in found]


def fsync(path):
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def timed(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def drop_cache():
    try:
        subprocess.run(["sync"], check=True)
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("1")
        return True
    except OSError:
        return False


def row(name, num_bytes, seconds):
    speeds = sorted(num_bytes / each / 1e9 for each in seconds)
    print(f"  {name:36} {statistics.median(speeds):8.3f} GB/s ({speeds[0]:.3f} to {speeds[-1]:.3f}, {len(speeds)} times)")


def load_seconds(output):
    found = re.search(r"loaded in ([\d.]+) s", output)
    return float(found.group(1)) if found else None


def measure_files(cli, folder, hidden, repeats):
    import torch
    from safetensors.torch import load_file, save_file
    size = {"hidden": hidden, "ffn": 3 * hidden}
    checkpoints = pathlib.Path(folder) / "ours"
    times = {"primus-worker": [], "dd conv=fsync": [], "torch.save": [], "safetensors save_file": []}
    loads = {"primus-worker": [], "torch.load": [], "safetensors load_file": []}
    tensors = None
    is_cold = True
    for number in range(repeats):
        shutil.rmtree(checkpoints, ignore_errors=True)
        output, _, _ = run(cli, folder, "save", iters=1, save=checkpoints, **size)
        (num_bytes, seconds), = saved(output)
        times["primus-worker"].append(seconds)
        if tensors is None:
            tensors = {}
            for file in (checkpoints / "latest").glob("*.safetensors"):
                tensors.update(load_file(file))
            print(f"{num_bytes / 2**30:.2f} GiB of state, {len(tensors)} tensors, {folder}")
        other = pathlib.Path(folder) / "other"
        blocks = int(num_bytes) // 2**20
        times["dd conv=fsync"].append(timed(lambda: subprocess.run(
            ["dd", "if=/dev/zero", f"of={other}", "bs=1M", f"count={blocks}", "conv=fsync"], check=True,
            capture_output=True)))
        times["torch.save"].append(timed(lambda: (torch.save(tensors, other), fsync(other))))
        is_cold = drop_cache() and is_cold
        loads["torch.load"].append(timed(lambda: torch.load(other)))
        times["safetensors save_file"].append(timed(lambda: (save_file(tensors, other), fsync(other))))
        is_cold = drop_cache() and is_cold
        # Every byte touched: safetensors maps the file.
        loads["safetensors load_file"].append(
            timed(lambda: [tensor.view(torch.uint8).sum() for tensor in load_file(other).values()]))
        other.unlink()
        is_cold = drop_cache() and is_cold
        output, _, _ = run(cli, folder, "save", iters=2, save=checkpoints, goes_on="true", **size)
        loads["primus-worker"].append(load_seconds(output))
    print("save")
    for name, seconds in times.items():
        row(name, num_bytes, seconds)
    print(f"load, page cache {'dropped before' if is_cold else 'warm: it may not be dropped here'}")
    for name, seconds in loads.items():
        row(name, num_bytes, seconds)


def measure_async(cli, folder, hidden, repeats):
    size = {"hidden": hidden, "ffn": 3 * hidden, "iters": 24}
    medians = {"no save": [], "save beside training": [], "save in the step": []}
    waits = []
    for _ in range(repeats):
        for name, settings in (("no save", {}), ("save beside training", {"beside": "true"}), ("save in the step", {})):
            save = {} if name == "no save" else {"save": pathlib.Path(folder) / "async", "interval": 8}
            shutil.rmtree(pathlib.Path(folder) / "async", ignore_errors=True)
            _, steps, seconds = run(cli, folder, "async", **size, **save, **settings)
            medians[name].append(statistics.median(steps[4:]))
            waits.append((name, seconds))
    print("steps of a run that saves every 8th (the copy is not in the step's own time, but in the run's)")
    for name, values in medians.items():
        whole = statistics.median(seconds for each, seconds in waits if each == name)
        print(f"  {name:36} step {statistics.median(values):8.1f} ms, whole run {whole:7.2f} s")
    base = statistics.median(medians["no save"])
    for name in ("save beside training", "save in the step"):
        extra = statistics.median(s for each, s in waits if each == name) - statistics.median(
            s for each, s in waits if each == "no save")
        print(f"  {name:36} costs {100 * extra / 3 / (base * 1e-3):6.1f} % of a step a save, all told")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default=ROOT / "bin", type=pathlib.Path, help="folder of primus-cli and primus-worker")
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--folder", help="on the disk that is measured (default: a temporary one)")
    parser.add_argument("--repeats", type=int, default=5)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=words.folder) as folder:
        hidden = size_for(words.gib)
        measure_files(words.bin / "primus-cli", folder, hidden, words.repeats)
        measure_async(words.bin / "primus-cli", folder, hidden, words.repeats)


if __name__ == "__main__":
    main()
