#include "model/saved_peak.hpp"

#include <algorithm>
#include <vector>

namespace primus::model {
namespace {

std::int64_t whole_bytes(const SavedDeclaration& part) {
  return part.size_bytes() + part.remade_bytes();
}

/// Bytes of one of a part's own tensors, by lifetime.
struct Tensor {
  std::int64_t size = 0;
  bool is_remade = false;
};

Tensor tensor(const SavedDeclaration& part, int slot) {
  const SavedTensor& declared = part.tensors.at(static_cast<std::size_t>(slot));
  return {declared.size_bytes(), declared.lifetime == Lifetime::kRemade};
}

/// Walks a micro-batch through a stage's parts in the order of nn/model.cpp and adds up what is there.
class Walk {
  static constexpr std::size_t kNumMtpTensors = 2;

 public:
  explicit Walk(const SavedDeclaration& stage) {
    for (const SavedDeclaration& child : stage.children) {
      // An output has no children; a depth has two norms of its own, a layer its two inputs besides.
      if (child.children.empty()) {
        outputs_.push_back(&child);
      } else {
        (child.tensors.size() > kNumMtpTensors ? layers_ : depths_).push_back(&child);
      }
    }
  }

  std::int64_t forward() {
    // What comes from the embedding or from another stage is the first part's input.
    add(input_size(0));
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      add(input_size(i + 1));
      layer_forward(*layers_[i], Drops::kYes);
    }
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (i > 0) add(tensor(*outputs_[i], OutputSlot::kInput).size);
      output_forward(*outputs_[i]);
    }
    for (const SavedDeclaration* depth : depths_) {
      const SavedDeclaration& layer = depth->children[MtpSlot::kLayer];
      const SavedDeclaration& output = depth->children[MtpSlot::kOutput];
      add(tensor(*depth, MtpSlot::kEmbeddingRstd).size + tensor(*depth, MtpSlot::kHiddenRstd).size);
      add(tensor(layer, LayerSlot::kInput).size + tensor(output, OutputSlot::kInput).size);
      layer_forward(layer, Drops::kYes);
      output_forward(output);
    }
    return peak_;
  }

  std::int64_t backward(std::int64_t kept) {
    add(kept);
    for (auto depth = depths_.rbegin(); depth != depths_.rend(); ++depth) {
      remove((*depth)->children[MtpSlot::kOutput].size_bytes());
      layer_backward((*depth)->children[MtpSlot::kLayer], Present::kKept);
      remove(tensor(**depth, MtpSlot::kEmbeddingRstd).size + tensor(**depth, MtpSlot::kHiddenRstd).size);
    }
    for (const SavedDeclaration* output : outputs_) remove(output->size_bytes());
    for (std::size_t i = layers_.size(); i-- > 0;) {
      if (i >= whole_from_ && i < whole_to_) {
        layer_backward(*layers_[i], Present::kAll);
        continue;
      }
      std::size_t first = i;
      while (tensor(*layers_[first], LayerSlot::kInput).is_remade) --first;
      for (std::size_t again = first; again < i; ++again) {
        add(input_size(again + 1));
        layer_forward(*layers_[again], Drops::kNo);
      }
      whole_from_ = first;
      whole_to_ = i;
      layer_backward(*layers_[i], Present::kKept);
    }
    return peak_;
  }

 private:
  enum class Drops { kNo, kYes };
  enum class Present { kKept, kAll };

  void add(std::int64_t bytes) {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }
  void remove(std::int64_t bytes) { held_ -= bytes; }

  /// Of the part behind layer i − 1: another layer or the output; behind a stage's last layer, what it sends away.
  std::int64_t input_size(std::size_t i) const {
    static_assert(static_cast<int>(LayerSlot::kInput) == static_cast<int>(OutputSlot::kInput));
    if (i < layers_.size()) return tensor(*layers_[i], LayerSlot::kInput).size;
    return outputs_.empty() ? 0 : tensor(*outputs_.front(), OutputSlot::kInput).size;
  }

  void layer_forward(const SavedDeclaration& layer, Drops drops) {
    const SavedDeclaration& attention = layer.children[LayerSlot::kMixer];
    const SavedDeclaration& mlp = layer.children[LayerSlot::kMlp];
    const std::int64_t made = drops == Drops::kYes ? whole_bytes(attention) : attention.remade_bytes();
    add(tensor(layer, LayerSlot::kInputRstd).size + tensor(layer, LayerSlot::kMiddle).size + made);
    if (drops == Drops::kYes) remove(attention.remade_bytes());
    add(tensor(layer, LayerSlot::kMiddleRstd).size + whole_bytes(mlp));
    if (drops == Drops::kYes) remove(layer.remade_bytes() - attention.remade_bytes());
  }

  void output_forward(const SavedDeclaration& output) {
    add(output.size_bytes() - tensor(output, OutputSlot::kInput).size);
  }

  /// From what is there (`present`) to nothing: restore, the MLP's half, the attention's half.
  void layer_backward(const SavedDeclaration& layer, Present present) {
    const SavedDeclaration& attention = layer.children[LayerSlot::kMixer];
    const SavedDeclaration& mlp = layer.children[LayerSlot::kMlp];
    const Tensor middle = tensor(layer, LayerSlot::kMiddle);
    const Tensor middle_rstd = tensor(layer, LayerSlot::kMiddleRstd);
    const Tensor input_rstd = tensor(layer, LayerSlot::kInputRstd);
    const bool is_whole = present == Present::kAll;
    const bool makes_half = middle.is_remade && !is_whole;
    if (makes_half) add(input_rstd.size + middle.size + attention.remade_bytes());
    if (!is_whole) add((middle_rstd.is_remade ? middle_rstd.size : 0) + mlp.remade_bytes());
    remove(whole_bytes(mlp) + middle.size + middle_rstd.size);
    if (!is_whole && !makes_half) add(attention.remade_bytes());
    remove(whole_bytes(attention) + input_rstd.size + tensor(layer, LayerSlot::kInput).size);
  }

  std::vector<const SavedDeclaration*> layers_;
  std::vector<const SavedDeclaration*> outputs_;
  std::vector<const SavedDeclaration*> depths_;
  std::size_t whole_from_ = 0;  // layers that a later layer's backward has made whole again
  std::size_t whole_to_ = 0;
  std::int64_t held_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace

std::int64_t saved_peak(const SavedDeclaration& stage, Pass pass) {
  Walk walk(stage);
  return pass == Pass::kForward ? walk.forward() : walk.backward(stage.size_bytes());
}

}  // namespace primus::model
