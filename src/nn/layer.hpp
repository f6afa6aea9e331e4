#pragma once
// The contract of every layer (D1): explicit forward, backward and weight gradient, and what the step tells them.
// Legend: T tokens of the micro-batch, H hidden.
#include "comm/group.hpp"
#include "nn/observer.hpp"
#include "nn/parameter.hpp"
#include "nn/saved.hpp"

namespace primus::nn {

/// Evaluation keeps nothing for backward and leaves counters as they are (D7). Recomputation is training's forward a
/// second time: the same numbers, jitter and drops included, but counters stay.
enum class Mode { kTraining, kEvaluation, kRecompute };

/// Weight gradients right behind the input gradients, or in an action of their own (zero-bubble, overlap).
enum class WeightGradTiming { kWithBackward, kDeferred };

/// Tables of the rotary embedding, [S, rotary/2], in the type of statistics.
struct RopeTables {
  Tensor cos_SP;
  Tensor sin_SP;
};

/// What a micro-batch's passes need beside the tensors.
struct StepContext {
  Mode mode = Mode::kTraining;
  WeightGradTiming weight_grad = WeightGradTiming::kWithBackward;
  model::BatchShape batch;
  RopeTables rope;          // rows by position in a sequence, or one for each token of the micro-batch
  RopeTables entry_rope;    // likewise, of layers whose keys are compressed; undefined: there are none
  Tensor first_key_BS;      // of packed documents: int32, the first token that each one sees; undefined: the sequence's
  double aux_scale = 1.0;   // d(step loss) / d(auxiliary loss of a micro-batch): loss_scale / number of micro-batches
  double loss_scale = 1.0;  // factor on every gradient of the step (half precision)
  Tensor ids_T;             // int64, tokens: of layers that route by them. Undefined: there are none
  Tensor is_routed_T;       // bool; false: filling, which no router routes or counts. Undefined: there is none
  int repetition = 0;       // how often a layer that is applied several times a pass has been applied before
  std::int64_t first_token = 0;  // global index of the micro-batch's first token; with the seed, it keys randomness
  std::uint64_t seed = 0;
  Observer* observer = nullptr;  // of training's own passes
  comm::Groups groups = comm::Groups::single();
};

/// `stream` of random numbers, another one for each time that a layer is applied in a pass.
inline std::uint64_t repeated_stream(std::uint64_t stream, const StepContext& step) {
  return stream + static_cast<std::uint64_t>(step.repetition) * 0x9E3779B97F4A7C15ULL;
}

/// The context of a forward that runs again inside backward.
inline StepContext recomputing(StepContext step) {
  step.mode = Mode::kRecompute;
  step.observer = nullptr;
  return step;
}

/// Multiplies rows first … first + count of a parameter by a factor, its master copy included.
using RowScaler = std::function<void(Parameter& parameter, std::int64_t first, std::int64_t count, double factor)>;

/// A part of a transformer layer between its norm and the residual stream.
class Sublayer {
 public:
  virtual ~Sublayer() = default;

  /// Adds the output to residual_TH. x_TH, the normed input, is not kept: the caller gives it again.
  virtual void forward(const Tensor& x_TH, Saved& saved, const StepContext& step, Tensor& residual_TH) = 0;

  /// Makes the dropped tensors of `saved` again, to the same bits, from the same x_TH; what is there stays.
  virtual void restore(const Tensor& x_TH, Saved& saved, const StepContext& step) = 0;

  /// dx_TH (overwritten) from dy_TH. With kWithBackward the weight gradients are added too; with kDeferred, x_TH, dy_TH
  /// and what weight_grad needs stay alive in `saved` until it ran. Saved tensors are released as they become useless.
  virtual void backward(const Tensor& dy_TH, const Tensor& x_TH, Saved& saved, const StepContext& step,
                        Tensor& dx_TH) = 0;

  /// Adds the weight gradients that a deferred backward left, and forgets what it left.
  virtual void weight_grad(Saved& saved) = 0;

  /// What a part counts over a training step begins anew.
  virtual void begin_step() {}
  /// After a step: attention whose logits grew too large has its projections scaled down.
  virtual void clip_logits(const model::QkClip&, const RowScaler&) {}
  /// The largest attention logit of the step so far; nothing where it is not counted.
  virtual std::optional<double> largest_logit() const { return std::nullopt; }
  /// Sum over the step's micro-batches of an indexer's loss, without its coefficient; nothing where none is taught.
  virtual std::optional<double> indexer_loss() const { return std::nullopt; }
};

/// An uninitialised tensor of the type of `like`.
inline Tensor workspace(std::initializer_list<std::int64_t> shape, const Tensor& like) {
  return at::empty(shape, like.options());
}

/// Heads side by side: [T, A, D] as [T, A·D], the same storage.
inline Tensor flat(const Tensor& x_TAD) {
  return x_TAD.view({x_TAD.size(0), x_TAD.size(1) * x_TAD.size(2)});
}

/// [T, A, D] as [B, S, A, D], the same storage.
inline Tensor by_sequence(const Tensor& x_TAD, model::BatchShape batch) {
  return x_TAD.unflatten(0, {batch.num_sequences, batch.seq_length});
}

}  // namespace primus::nn
