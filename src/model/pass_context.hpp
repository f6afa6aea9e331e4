#pragma once
// What the walks over the parts of a model share. Each function here is the twin, in bytes, of the function of the same
// part in src/nn: who allocates there something else has to say so here, and tests/engine/pass_bytes_test.cpp notices.
#include "model/numerics.hpp"
#include "model/op_scratch.hpp"
#include "model/pass_ledger.hpp"
#include "model/sharding.hpp"

namespace primus::model {

/// kTraining drops what is marked; kRecompute, inside backward, does not, and counts nothing.
enum class PassMode { kTraining, kRecompute };

/// What the walks over the parts of one micro-batch read.
struct PassContext {
  const ModelSpec& spec;
  const NumericPolicy& policy;
  BatchShape batch;
  const Sharding& sharding;
  PassLedger& ledger;
  const OpScratch& scratch;

  DType activations() const { return policy.activations; }
  /// [tokens, inputs] · [inputs, outputs], all activations; what that op and its two gradients take.
  void product_forward(std::int64_t tokens, std::int64_t inputs, std::int64_t outputs) const {
    ledger.scratch(scratch.product_forward({tokens, inputs, outputs}, {activations(), activations()}));
  }
  void product_backward(std::int64_t tokens, std::int64_t inputs, std::int64_t outputs) const {
    ledger.scratch(scratch.product_backward({tokens, inputs, outputs}, {activations(), activations()}));
  }
  /// A parameter in the type that an op needs, where it has another.
  void read_parameter(std::int64_t num_elements, DType wanted) const {
    ledger.convert_briefly(num_elements, policy.parameters, wanted);
  }
};

/// A norm over x, [rows, width].
struct PassNorm {
  std::int64_t width = 0;
  Part bias = Part::kAbsent;
  std::int64_t num_sums = 1;  // that the op adds up for the gradient

  PassNorm(const ModelSpec& spec, std::int64_t of_width)
      : width(of_width),
        bias(spec.norm == NormKind::kLayer ? Part::kPresent : Part::kAbsent),
        num_sums(bias == Part::kPresent || spec.norm_around_one == Part::kPresent ? 2 : 1) {}
  /// One without weight and bias of its own.
  explicit PassNorm(std::int64_t of_width) : width(of_width) {}

  void forward(const PassContext& pass, const PassTensor& x, std::int64_t rows, DType y, int statistics_slot,
               PassSaved& saved) const;
  void apply(const PassContext& pass, const PassTensor& x, std::int64_t rows, DType y) const;
  /// dx is the caller's.
  void backward(const PassContext& pass, const PassTensor& dy, DType x, std::int64_t rows) const;

 private:
  std::vector<PassTensor> values(const PassContext& pass, DType x) const;
};

/// A hyper-connection of the model, or the head before an output: nn::HyperConnection's twin. There are several
/// residual streams.
class PassStreams {
 public:
  enum class Kind { kConnection, kHead };
  PassStreams(const PassContext& pass, Kind kind, std::int64_t rows);

  /// Returns what the norm sees.
  PassTensor read(int input_slot, int mix_slot, PassSaved& saved) const;
  void write() const;
  /// Returns the gradient of the weights, which read_backward uses up.
  PassTensor write_backward() const;
  void read_backward(PassTensor dweight) const;

 private:
  /// The parameters in the type of sums.
  std::vector<PassTensor> values() const;

  const PassContext& pass_;
  HyperCuts cuts_;
  std::int64_t rows_;
};

/// One hidden state of `rows` tokens in `type` for each of their residual streams' gradients; nothing where there is
/// one stream: it is the gradient itself.
PassTensor sum_of_streams(const PassContext& pass, PassTensor dx_TC);

/// An indexer's heads over `rows` rows of the micro-batch, as what ops take for themselves depends on them.
AttentionSizes indexer_sizes(const IndexerSpec& indexer, const PassContext& pass, std::int64_t rows);

/// The indexer of a layer of sparse attention; `rows` tokens are this rank's.
class PassIndexer {
 public:
  explicit PassIndexer(const ModelSpec& spec);

  bool is_taught() const { return spec_.loss_coefficient > 0.0; }
  void select(const PassContext& pass, std::int64_t rows) const;
  /// Returns what is left for the weight gradients beside the indexer's inputs.
  std::vector<PassTensor> teach(const PassContext& pass, std::int64_t rows) const;
  void weight_gradients(const PassContext& pass, std::int64_t rows) const;

 private:
  struct Made {
    PassTensor query, key, statistics, normed, weight;
  };
  Made heads(const PassContext& pass, std::int64_t rows) const;

  const IndexerSpec& spec_;
  std::int64_t input_width_;
  std::int64_t query_dim_;  // of attention
  PassNorm norm_;
};

/// y_TH += x_TH behind dropout.
void dropout_into_sum(const PassContext& pass, const PassTensor& x_TH, DType y);

/// One half of a layer: nn::Sublayer's twin.
class PassSublayer {
 public:
  virtual ~PassSublayer() = default;
  virtual void forward(const PassContext& pass, const PassTensor& x_TH, PassSaved& saved, PassMode mode) const = 0;
  virtual void restore(const PassContext& pass, const PassTensor& x_TH, PassSaved& saved) const = 0;
  virtual void backward(const PassContext& pass, const PassTensor& dy_TH, const PassTensor& x_TH,
                        PassSaved& saved) const = 0;
};

std::unique_ptr<PassSublayer> gqa_pass(const ModelSpec& spec);
std::unique_ptr<PassSublayer> mla_pass(const ModelSpec& spec, int layer);
std::unique_ptr<PassSublayer> compressed_pass(const ModelSpec& spec, int layer);
/// Of the layer's kind: nn::make_mixer's twin.
std::unique_ptr<PassSublayer> mixer_pass(const ModelSpec& spec, int layer);
std::unique_ptr<PassSublayer> dense_mlp_pass();
std::unique_ptr<PassSublayer> moe_pass(const ModelSpec& spec, int layer);

/// An MLP whose pre-activation lies in a slot: the dense one, and the shared experts.
struct PassMlp {
  int slot = 0;
  std::int64_t interleave = 0;

  void pre_activation(const PassContext& pass, PassSaved& saved) const;
  void forward(const PassContext& pass, PassSaved& saved) const;
  /// Returns what is left for the weight gradients beside input and output gradient.
  std::vector<PassTensor> input_gradient(const PassContext& pass, PassSaved& saved) const;
};

/// A pre-activation of `width` whose gate and up alternate in blocks, in the order that the op reads, or back.
PassTensor reordered(const PassContext& pass, const PassTensor& pre, std::int64_t width, std::int64_t block);

/// The router of an MoE layer. backward returns what the weight gradients read.
void router_forward(const PassContext& pass, const RouterSpec& router, const PassTensor& x_TH, PassSaved& saved,
                    PassMode mode);
std::vector<PassTensor> router_backward(const PassContext& pass, const PassTensor& x_TH, PassSaved& saved);
void router_weight_gradients(const PassContext& pass);

}  // namespace primus::model
