"""Inverse frequencies of rotary positions and the factor on cos and sin, by transformers' own functions (in fp32)."""
import types

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from golden_text import GoldenText

golden = GoldenText(__file__, "Inverse frequencies of rotary positions.")


class Config(types.SimpleNamespace):
    def standardize_rope_params(self):
        pass


def case(name, kind, head_dim, base, fraction=1.0, **parameters):
    config = Config(head_dim=head_dim, hidden_size=head_dim, num_attention_heads=1, max_position_embeddings=131072,
                    rope_parameters={"rope_type": kind, "rope_theta": base, "partial_rotary_factor": fraction,
                                     **parameters})
    frequency, factor = ROPE_INIT_FUNCTIONS[kind](config, device="cpu")
    golden.case(name)
    golden.put("kind", kind)
    golden.put("rotary_dim", int(head_dim * fraction))
    golden.put("base", base)
    for key, value in parameters.items():
        golden.put(key, int(value) if isinstance(value, bool) else value)
    golden.put("cos_factor", f"{factor:.17g}")
    golden.put("frequency", *(f"{value:.17g}" for value in frequency.tolist()))


LLAMA = dict(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
YARN = dict(original_max_position_embeddings=4096, beta_fast=32, beta_slow=1)

case("llama3.1", "llama3", 128, 500000.0, factor=8.0, **LLAMA)
case("llama4", "llama3", 128, 500000.0, factor=16.0, **LLAMA)
case("llama, half of each head", "llama3", 64, 10000.0, fraction=0.5, factor=4.0, **LLAMA)
case("positions divided by 4", "linear", 128, 1000000.0, factor=4.0)
case("positions divided by 3, a quarter of each head", "linear", 256, 10000000.0, fraction=0.25, factor=3.0)
case("gpt-oss", "yarn", 64, 150000.0, factor=32.0, truncate=False, **YARN)
case("DeepSeek-V2", "yarn", 64, 10000.0, factor=40.0, mscale=0.707, mscale_all_dim=0.707, truncate=True, **YARN)
case("DeepSeek-V3", "yarn", 64, 10000.0, factor=40.0, mscale=1.0, mscale_all_dim=1.0, truncate=True, **YARN)
case("two mscales", "yarn", 96, 50000.0, factor=16.0, mscale=1.2, mscale_all_dim=0.4, truncate=True,
     original_max_position_embeddings=2048, beta_fast=16, beta_slow=2)
case("half of each head", "yarn", 128, 5000000.0, fraction=0.5, factor=4.0, truncate=True, **YARN)
golden.write()
