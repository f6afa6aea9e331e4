#pragma once
// ModelSpec: what the model is, in sizes. The projection adds it up, the trainer builds it, the viewer draws it.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/experiment.hpp"

namespace primus::model {

/// kNone: positions do not turn queries and keys. kLlama3: Llama 3.1's scaling of low frequencies.
enum class RopeType { kNone, kRope, kLlama3, kYarn };

/// A part that a model may have or not.
enum class Part { kAbsent, kPresent };

/// Which elements of a head turn together: i and i + d/2, or 2i and 2i + 1.
enum class RopePairs { kHalves, kNeighbours };

/// Rotary embedding (decision 13); `rotary_dim` elements of each head are rotated.
struct RopeSpec {
  RopeType type = RopeType::kRope;
  std::int64_t rotary_dim = 0;
  double base = 10000.0;
  double scaling_factor = 1.0;
  std::int64_t original_max_position = 4096;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 1.0;
  double mscale_all_dim = 0.0;
  Part rounded_range = Part::kPresent;   // YaRN: the range of scaled frequencies ends at whole dimensions
  double interpolation = 1.0;            // positions are divided by it
  RopePairs pairs = RopePairs::kHalves;  // of grouped-query attention; latent attention turns neighbours
};

/// The indexer of sparse attention: small heads that pick the keys of each query (ops/indexer). Its rotated part is as
/// wide as latent attention's, and comes first in a head.
struct IndexerSpec {
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t top_k = 0;
  double loss_coefficient = 0.0;     // of the loss that teaches it; 0: nothing moves it
  Part sparse_loss = Part::kAbsent;  // that loss is over picked keys alone
  double norm_epsilon = 1e-5;        // of the LayerNorm on its keys
  Part hadamard = Part::kPresent;    // queries and keys go through a Hadamard rotation
  Part rectified = Part::kPresent;   // negative products count as zero
  RopePairs pairs = RopePairs::kHalves;

  std::int64_t query_width() const { return num_heads * head_dim; }
};

/// Multi-head latent attention: low-rank keys and values, queries direct or low-rank, position in extra elements.
struct MlaSpec {
  std::int64_t num_heads = 0;
  std::optional<std::int64_t> q_lora_rank;
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_head_dim = 0;          // without position
  std::int64_t qk_pos_emb_head_dim = 0;  // rotated part
  std::int64_t v_head_dim = 0;
  Part latent_norms = Part::kPresent;
  Part output_gate = Part::kAbsent;    // made of the layer's input, as wide as the values of all heads
  std::optional<IndexerSpec> indexer;  // sparse attention

  /// What the indexer's queries are made of: the queries' latent vector, or the layer's input.
  std::int64_t indexer_input(std::int64_t hidden_size) const { return q_lora_rank.value_or(hidden_size); }
  std::int64_t query_dim() const { return qk_head_dim + qk_pos_emb_head_dim; }
};

/// Grouped-query attention; num_query_groups == num_heads is multi-head attention.
struct GqaSpec {
  std::int64_t num_heads = 0;
  std::int64_t num_query_groups = 0;
  std::int64_t head_dim = 0;
  Part qk_norms = Part::kAbsent;       // on each head's query and key, with a weight
  Part qk_unit_norms = Part::kAbsent;  // the same without one
  Part qkv_bias = Part::kAbsent;       // the output projection's bias follows ModelSpec::linear_bias
  Part output_gate = Part::kAbsent;    // as wide as the queries: each head's stands behind its query

  /// Heads of the fused projection: queries (and gates), keys, values.
  std::int64_t num_query_rows() const { return output_gate == Part::kPresent ? 2 * num_heads : num_heads; }
  std::int64_t num_fused_heads() const { return num_query_rows() + 2 * num_query_groups; }
  bool has_norms() const { return qk_norms == Part::kPresent || qk_unit_norms == Part::kPresent; }
};

using AttentionSpec = std::variant<MlaSpec, GqaSpec>;

enum class ScoreFunction { kSoftmax, kSigmoid, kSqrtSoftplus };
enum class SoftmaxOrder { kPre, kPost };

/// Coefficients of what the router adds to the loss; 0: nothing.
struct RouterLosses {
  double aux = 0.0;         // balance of a micro-batch
  double seq_aux = 0.0;     // of each sequence
  double global_aux = 0.0;  // of the step's micro-batches so far
  double z = 0.0;           // size of the logits

  bool has_balance() const { return aux != 0.0 || seq_aux != 0.0 || global_aux != 0.0; }
};

/// Bound on the tokens of one expert: ceil(T·K/E · factor).
struct ExpertCapacity {
  double factor = 1.0;
  enum class Drop {
    kProbability,
    kPosition
  } drop = Drop::kProbability;  // what goes first: the least probable, or the last
  enum class FreeRows {
    kLeftOut,
    kKept
  } free_rows = FreeRows::kLeftOut;  // kept: every expert computes its full capacity
};

/// The expert bias that would give every expert its share of the tokens seen, from histograms of margins (score less
/// the token's (k+1)-th biased score).
struct QuantileRule {
  std::int64_t num_bins = 1024;
  double lowest = -1.0;  // margins outside count in the bins at the ends
  double highest = 1.0;
  Part centred = Part::kPresent;     // a common shift of the biases is taken out
  std::int64_t update_interval = 1;  // steps that a histogram spans
  double ema = 0.0;                  // share of the old bias that stays
};

struct RouterSpec {
  std::int64_t num_experts = 0;
  std::int64_t top_k = 0;
  ScoreFunction score_function = ScoreFunction::kSoftmax;
  SoftmaxOrder softmax_order = SoftmaxOrder::kPost;
  double scaling_factor = 1.0;
  RouterLosses losses;
  /// How experts are chosen by their scores: the best ones, or spread evenly over the micro-batch, or after a learnt
  /// quantile is taken from their logits.
  enum class Assignment { kTopK, kSinkhorn, kQuantile } assignment = Assignment::kTopK;
  double quantile_ema = 0.0;  // decay of the quantile's mean over steps
  std::optional<std::int64_t> num_groups;
  std::optional<std::int64_t> group_top_k;
  enum class GroupScore { kMax, kSumOfBest } group_score = GroupScore::kSumOfBest;
  /// Forced: experts take turns; random: normal numbers take the logits' place. For benchmarks.
  enum class Balance { kLearnt, kForced, kRandom } balance = Balance::kLearnt;
  /// Random logits that favour some experts: standard deviation of the favour; negative: the same in every pass.
  std::optional<double> forced_imbalance;
  enum class ExpertBias { kOff, kOn } expert_bias = ExpertBias::kOff;
  double expert_bias_rate = 0.0;              // step of the bias after an iteration
  std::optional<QuantileRule> quantile_rule;  // how the bias moves; absent: by the sign of the imbalance
  double input_jitter = 0.0;   // the router's input is multiplied by 1 − jitter .. 1 + jitter in training
  double logit_softcap = 0.0;  // 0: none
  std::optional<ExpertCapacity> capacity;

  bool has_random_logits() const { return balance == Balance::kRandom || forced_imbalance.has_value(); }
  /// Are there numbers that depend on a token's place in the run?
  bool draws_by_token() const { return has_random_logits() || input_jitter != 0.0; }

  /// Rows of the balancing losses' slopes: sequences, or the micro-batch as one.
  std::int64_t num_slopes(std::int64_t num_sequences) const {
    return !losses.has_balance() ? 0 : losses.seq_aux != 0.0 ? num_sequences : 1;
  }
  /// Rows that one expert takes of `tokens` tokens at most; a token chooses it once.
  std::int64_t expert_capacity(std::int64_t tokens) const;
  /// Rows that all experts together have room for.
  std::int64_t num_expert_rows(std::int64_t tokens) const;
};

/// Routed experts that work in a space narrower than the residual stream.
struct LatentExpertSpec {
  std::int64_t size = 0;
  Part norm = Part::kAbsent;  // of the experts' sum, before it is projected back
};

struct MoeSpec {
  RouterSpec router;
  std::int64_t ffn_hidden_size = 0;
  std::int64_t glu_interleave = 0;  // experts' gate and up alternate in blocks of so many rows; 0: one behind the other
  std::int64_t shared_glu_interleave = 0;   // the shared experts' alike
  std::int64_t shared_ffn_hidden_size = 0;  // over all shared experts; 0: none
  Part shared_gate = Part::kAbsent;         // one sigmoid gate a token on the shared experts
  enum class ProbabilitiesOn { kActivation, kInput } probabilities_on = ProbabilitiesOn::kActivation;
  std::optional<LatentExpertSpec> latent;
};

/// The function between the two matrices of an MLP.
struct ActivationSpec {
  /// kSitu, of gated units: β·tanh(x/β)·σ(x).
  enum class Function { kSilu, kQuickGelu, kGelu, kTanhGelu, kSquaredRelu, kSitu } function = Function::kSilu;
  std::optional<double> clamp;             // of gated units
  double linear_offset = 0.0;              // likewise
  double situ_beta = 1.0;                  // β of kSitu
  std::optional<double> situ_linear_beta;  // beside kSitu: up becomes β·tanh(up/β)
};

/// Probabilities of dropping, in training alone.
struct DropoutSpec {
  double hidden = 0.0;     // elements of the embedding and of what each half of a layer adds to the residual stream
  double attention = 0.0;  // attention's weights
};

/// What reads the output layer's products: softcap · tanh(scale · product / softcap).
struct LogitSpec {
  double scale = 1.0;
  double softcap = 0.0;  // 0: scale · product
};

/// Scales by width, so that a narrow model's settings carry over (maximal update parametrisation).
struct WidthScaling {
  double width = 1.0;            // hidden size over the base model's
  double embedding = 1.0;        // factor on the embedding's output
  double attention_power = 1.0;  // the softmax scale is sqrt(base_head_dim) / head_dim^power
  double base_head_dim = 1.0;
};

/// Gated delta net: linear attention behind a short convolution.
struct GatedDeltaSpec {
  std::int64_t num_key_heads = 0;
  std::int64_t num_value_heads = 0;
  std::int64_t key_head_dim = 0;
  std::int64_t value_head_dim = 0;
  std::int64_t kernel_size = 0;

  std::int64_t key_width() const { return num_key_heads * key_head_dim; }
  std::int64_t value_width() const { return num_value_heads * value_head_dim; }
  /// Queries, keys, values, output gate, and a write strength and a decay a head.
  std::int64_t projected_width() const { return 2 * key_width() + 2 * value_width() + 2 * num_value_heads; }
};

/// Kimi delta attention: a gated delta net whose decays are one a row of the state. What decays are made of has a low
/// rank, and so has what the output gate is made of, unless it has full rank.
struct KimiDeltaSpec {
  GatedDeltaSpec heads;                // sizes alone
  std::optional<double> lowest_decay;  // logarithm, below 0, that a sigmoid approaches; absent: there is no lowest one
  Part full_rank_gate = Part::kAbsent;
  std::int64_t chunk_size = 64;  // tokens that are taken at a time, which changes rounding and memory alone

  bool has_low_rank_gate() const { return full_rank_gate == Part::kAbsent; }
  std::int64_t rank() const { return heads.value_head_dim; }
  std::int64_t decay_width() const { return heads.num_value_heads * heads.key_head_dim; }
  /// Queries, keys, values, a write strength a head, and a gate of full rank.
  std::int64_t projected_width() const {
    return 2 * heads.key_width() + (has_low_rank_gate() ? 1 : 2) * heads.value_width() + heads.num_value_heads;
  }
  std::int64_t low_rank_width() const { return (has_low_rank_gate() ? 2 : 1) * rank(); }
};

/// LFM2's gated short convolution.
struct ShortConvolutionSpec {
  std::int64_t kernel_size = 0;
  Part bias = Part::kAbsent;
};

/// Hyper-connections (ops/hyper_connection): more residual streams than one. Each half of a layer reads one weighted
/// sum of them and is written into all, which are mixed meanwhile; a head makes one hidden state of them before an
/// output.
struct HyperSpec {
  std::int64_t num_streams = 1;
  std::int64_t sinkhorn_iterations = 20;  // 0: rows of a mixing matrix add up to one, its columns to anything
  double epsilon = 1e-6;
  double norm_epsilon = 1e-6;  // of the root mean square that divides the logits' products
  /// Megatron's takes the mean of the streams before an output, and adds norm_epsilon to the root itself.
  enum class Form { kDeepSeek, kMegatron } form = Form::kDeepSeek;
  double first_scale = 1.0;  // what scales of the logits begin as

  bool has_head() const { return form == Form::kDeepSeek; }

  /// What a half of a layer makes of its streams: weights of reading, of writing, and of the mixing matrix.
  std::int64_t num_logits() const { return num_streams * (2 + num_streams); }
};

/// After a step whose attention logits passed the threshold in a head, its queries and keys shrink to it.
struct QkClip {
  double threshold = 100.0;
  double alpha = 0.5;  // share that the queries take
};

/// Variants of multi-token prediction.
struct MtpVariant {
  Part detached = Part::kAbsent;  // depths send no gradient into decoder, embedding and output weight
  Part repeated = Part::kAbsent;  // one layer, with its norms, is applied at every depth
  /// In training each token reads one of the parts before, drawn at random, at the place that predicts the same token.
  Part mixed_hidden_states = Part::kAbsent;
};

enum class LayerKind { kDense, kMoe };

/// What mixes the tokens of a layer. kUnknown: a kind whose shapes are not known here, and which is not counted.
enum class MixerKind { kAttention, kGatedDelta, kKimiDelta, kShortConvolution, kUnknown };
/// Layers that are equal here have the same parameters and tensors, but for their names.
struct LayerLikeness {
  LayerKind kind = LayerKind::kDense;
  MixerKind mixer = MixerKind::kAttention;
  Part picks_keys = Part::kAbsent;
  int layer = 0;  // what is like no other

  auto operator<=>(const LayerLikeness&) const = default;
};
enum class OutputWeight { kOwn, kTiedToEmbedding };
enum class NormKind { kRms, kLayer };

struct ModelSpec {
  std::int64_t hidden_size = 0;
  std::int64_t seq_length = 0;
  std::int64_t vocab_size = 0;         // the tokenizer's
  std::int64_t padded_vocab_size = 0;  // what is allocated
  std::vector<LayerKind> layers;
  std::vector<MixerKind> mixers;    // empty: attention in every layer
  std::int64_t num_mtp_layers = 0;  // multi-token prediction depths
  double mtp_loss_scale = 0.1;      // of the depths' mean loss
  MtpVariant mtp_variant;
  AttentionSpec attention;
  RopeSpec rope;
  std::int64_t dense_ffn_hidden_size = 0;
  std::optional<MoeSpec> moe;
  std::optional<HyperSpec> hyper;          // absent: one residual stream
  GatedDeltaSpec gated_delta;              // of the layers that mix in this way
  KimiDeltaSpec kimi_delta;                // likewise
  ShortConvolutionSpec short_convolution;  // likewise
  Part mlp_gate = Part::kPresent;          // dense MLPs and experts are gated units
  ActivationSpec activation;               // of both
  Part linear_bias = Part::kAbsent;        // biases of every linear layer but the output layer
  Part sinks = Part::kAbsent;              // a learnt logit a head in the softmax of attention
  Part zero_sink = Part::kAbsent;          // a logit of zero there
  std::optional<QkClip> qk_clip;
  double attention_softcap = 0.0;          // attention logits are softcap · tanh(logit / softcap); 0: as they are
  std::vector<std::int64_t> windows;       // keys that a query of a layer sees, itself included; 0: all; empty: all
  std::vector<Part> rotated_layers;        // empty: positions turn queries and keys in every layer
  std::vector<Part> choosing_layers;       // sparse attention: layers with an indexer; empty: all
  std::int64_t num_learned_positions = 0;  // 0: positions are not a table of the embedding
  std::int64_t residual_block = 0;         // layers of a block of the residual stream, to which layers attend; 0: none
  NormKind norm = NormKind::kRms;
  Part norm_around_one = Part::kAbsent;      // norms multiply by 1 + weight
  Part residual_after_norm = Part::kAbsent;  // a half of a layer is added to its normed input, not to the input
  double norm_epsilon = 1e-5;
  DropoutSpec dropout;
  LogitSpec logits;
  std::optional<WidthScaling> width_scaling;
  enum class InitShape { kNormal, kXavierUniform } init_shape = InitShape::kNormal;  // of matrices
  double init_std = 0.02;
  std::optional<double> embedding_init_std;  // if another than init_std
  OutputWeight output_weight = OutputWeight::kOwn;

  std::int64_t num_layers() const { return static_cast<std::int64_t>(layers.size()); }
  std::int64_t num_streams() const { return hyper ? hyper->num_streams : 1; }
  /// Numbers of a token between layers: its streams, one behind the other.
  std::int64_t residual_width() const { return num_streams() * hidden_size; }
  std::int64_t num_moe_layers() const;
  std::int64_t num_layers_of(MixerKind mixer) const;
  std::int64_t num_heads() const;
  /// The depth whose parameters prediction depth `depth` uses.
  int parameter_depth(int depth) const { return mtp_variant.repeated == Part::kPresent ? 0 : depth; }
  std::int64_t num_mtp_parameter_sets() const {
    return mtp_variant.repeated == Part::kPresent ? std::min<std::int64_t>(num_mtp_layers, 1) : num_mtp_layers;
  }
  /// Numbers from num_layers() on are the prediction depths' layers, of the last layer's kind.
  LayerKind kind(int layer) const { return layers.at(static_cast<std::size_t>(decoder_layer(layer))); }
  MixerKind mixer(int layer) const;
  LayerLikeness likeness(int layer) const;
  std::int64_t window(int layer) const;
  bool is_rotated(int layer) const;
  /// The indexer of sparse attention; nullptr where attention is dense.
  const IndexerSpec* indexer() const;
  /// Does an indexer of the layer's own pick its keys? In other layers of sparse attention the layer before did.
  bool picks_keys(int layer) const;
  /// Keys that a query of a layer looks at, at most; 0: all.
  std::int64_t most_keys(int layer) const;

  int decoder_layer(int layer) const { return std::min(layer, static_cast<int>(layers.size()) - 1); }

  /// Matrices of one MLP: gate, up and down, or up and down.
  std::int64_t num_mlp_matrices() const { return mlp_gate == Part::kPresent ? 3 : 2; }
  /// Rows of the first of them, where gate and up are one matrix.
  std::int64_t mlp_input_rows(std::int64_t ffn_hidden_size) const { return (num_mlp_matrices() - 1) * ffn_hidden_size; }
};

/// The spec of an experiment that the configuration has accepted. InternalError where validation should have refused.
ModelSpec build_model_spec(const config::Experiment& experiment);

/// A model whose norms are as the one on the indexer's keys.
ModelSpec indexer_norm(const ModelSpec& spec);

/// Pattern of MoE layers from moe_layer_freq: an integer n (every n-th layer, the first included) or a list of 0 and 1
/// such as "([0]*1+[1]*26)".
std::vector<LayerKind> layer_kinds(const config::Value& moe_layer_freq, std::int64_t num_layers);

}  // namespace primus::model
