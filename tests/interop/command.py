"""Running primus-cli, comparing tensors, counting what was checked."""
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A run of seconds; {folder} is its workspace, further overrides may follow.
TINY_EXPERIMENT = """work_group: t
user_name: me
exp_name: run
workspace: {folder}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: deepseek_v2_tiny.yaml
    overrides:
      mock_data: true
      vocab_size: 200
      num_layers: 2
      moe_layer_freq: ([0]*1+[1]*1)
      hidden_size: 32
      ffn_hidden_size: 48
      num_attention_heads: 2
      kv_lora_rank: 16
      num_experts: 4
      moe_ffn_hidden_size: 24
      moe_shared_expert_intermediate_size: 24
      seq_length: 32
      max_position_embeddings: 32
      micro_batch_size: 2
      global_batch_size: 4
      train_iters: 10
      eval_iters: 1
      eval_interval: 5
      log_interval: 1
      bf16: false
      lr: 5.0e-3
"""
SKIPPED = 77  # what ctest takes as "skipped"


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def need_transformers(version):
    """Releases before 5 lay experts out otherwise in memory, and lack some of the models."""
    if int(version.split(".")[0]) < 5:
        skip(f"transformers {version} is older than 5")


def cli_path():
    path = Path(os.environ.get("PRIMUS_CLI", ROOT / "bin/primus-cli"))
    if not path.exists():
        sys.exit(f"{path} is not built")
    return path


def run(*words, code=0, cwd=None):
    """Standard output of primus-cli; it must end with `code`."""
    done = subprocess.run([str(cli_path()), *map(str, words)], capture_output=True, text=True, cwd=cwd)
    if done.returncode != code:
        sys.exit(f"primus-cli {' '.join(map(str, words))}\nended with {done.returncode} instead of {code}\n"
                 f"{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def run_json(*words, code=0):
    return json.loads(run(*words, "--format", "json", code=code))


class Checks:
    """Fails at the first thing that does not hold; keeps the largest error of each kind."""

    def __init__(self):
        self.largest = {}
        self.count = 0

    def that(self, holds, what):
        self.count += 1
        if not holds:
            sys.exit(f"FAILED: {what}")

    def near(self, kind, error, bound, what):
        self.largest[kind] = max(error, self.largest.get(kind, 0.0))
        self.that(error <= bound, f"{what}: {kind} error {error:.3e} is above {bound:.0e}")

    def report(self, name):
        errors = ", ".join(f"{kind} {error:.2e}" for kind, error in self.largest.items())
        print(f"{name}: {self.count} checks hold; largest errors: {errors or 'none measured'}")


def relative(ours, theirs):
    """Larger of the two-norm's and the largest element's relative error."""
    ours, theirs = ours.double(), theirs.double()
    scale, peak = theirs.norm().item(), theirs.abs().max().item()
    if scale == 0.0:
        return ours.abs().max().item()
    difference = ours - theirs
    return max(difference.norm().item() / scale, difference.abs().max().item() / peak)
