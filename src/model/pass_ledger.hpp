#pragma once
// A book of the tensors that live while a pass of a micro-batch runs: the walks over the layers (pass_*.cpp) write into
// it what src/nn allocates, in the same order and for as long.
#include <memory>
#include <optional>
#include <vector>

#include "model/saved_tensors.hpp"

namespace primus::model {

/// What a tensor of a pass is: kept for backward or made again for it, a layer's for a moment, or, of the latter, rows
/// on their way to experts and back; or a main gradient that is allocated when backward reaches it.
enum class PassMemory { kSaved, kWorkspace, kRows, kGradients };

/// What is there at one moment. `workspace` counts rows too.
struct PassMoment {
  std::int64_t saved = 0;
  std::int64_t workspace = 0;
  std::int64_t rows = 0;
  std::int64_t gradients = 0;

  std::int64_t total() const { return saved + workspace + gradients; }
};

/// Bytes of one pass. `workspace` counts rows too.
struct PassPeaks {
  std::int64_t saved = 0;                // at its own peak, like the next two
  std::int64_t workspace = 0;            // tensors of the layers
  std::int64_t scratch = 0;              // what one op takes for itself
  std::int64_t together = 0;             // saved and workspace at one time
  std::int64_t rows = 0;                 // of workspace, at its peak
  std::int64_t workspace_allocated = 0;  // of all workspace tensors of the pass, whether at one time or not
  PassMoment fullest;                    // the moment that has most, gradients among it
};

class PassLedger;

/// A tensor by its size; its bytes count while a copy of this lives.
class PassTensor {
 public:
  PassTensor() = default;

  bool is_defined() const { return block_ != nullptr; }
  void reset() { block_.reset(); }
  std::int64_t num_elements() const;
  DType dtype() const;

 private:
  friend class PassLedger;
  struct Block {
    Block(PassLedger& in, std::int64_t elements, DType type, PassMemory kind);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    PassLedger& ledger;
    std::int64_t num_elements;
    std::int64_t num_bytes;
    DType dtype;
    PassMemory memory;
  };
  std::shared_ptr<const Block> block_;
};

class PassLedger {
 public:
  /// `left_out`: number of a workspace tensor that counts nothing, for the proof that each one counts.
  explicit PassLedger(std::optional<std::int64_t> left_out = std::nullopt) : left_out_(left_out) {}
  PassLedger(const PassLedger&) = delete;
  PassLedger& operator=(const PassLedger&) = delete;

  PassTensor tensor(std::int64_t num_elements, DType dtype, PassMemory memory = PassMemory::kWorkspace);
  /// Of the same size and type, nothing in it.
  PassTensor like(const PassTensor& x) { return tensor(x.num_elements(), x.dtype()); }
  /// x itself if it has the type.
  PassTensor converted(const PassTensor& x, DType dtype);
  /// x in `dtype` for one op, gone behind it.
  void convert_briefly(std::int64_t num_elements, DType from, DType to);
  /// y += x or y *= x, of equal sizes: libtorch widens what is narrower than the other, and a narrow result too.
  void combine_into(std::int64_t num_elements, DType y, DType x);
  /// A number that an op of libtorch's takes beside a tensor of `dtype`: it makes a tensor of it.
  std::vector<PassTensor> number(DType dtype);
  /// What an op takes for itself and gives back.
  void scratch(std::int64_t num_bytes) { peaks_.scratch = std::max(peaks_.scratch, num_bytes); }

  /// Forgets the peaks, not what is held.
  void begin_pass();
  const PassPeaks& peaks() const { return peaks_; }
  std::int64_t num_tensors() const { return num_tensors_; }
  std::int64_t held_bytes() const { return now_.saved + now_.workspace; }

 private:
  friend struct PassTensor::Block;
  std::int64_t counted_bytes(std::int64_t num_bytes, PassMemory memory);
  void add(std::int64_t num_bytes, PassMemory memory);

  std::optional<std::int64_t> left_out_;
  std::int64_t num_tensors_ = 0;
  PassMoment now_;
  PassPeaks peaks_;
};

/// A layer's saved tensors by their declaration; the twin of nn::Saved in bytes.
class PassSaved {
 public:
  PassSaved(const SavedDeclaration& declaration, PassLedger& ledger);

  const SavedTensor& declared(int slot) const { return declaration_->tensors.at(static_cast<std::size_t>(slot)); }
  int num_slots() const { return static_cast<int>(tensors_.size()); }
  const PassTensor& allocate(int slot);
  const PassTensor& at(int slot) const;
  void release(int slot) { tensors_.at(static_cast<std::size_t>(slot)).reset(); }
  bool is_missing(int slot) const;
  void drop_remade();
  void release_all();
  PassSaved& child(int index) { return children_.at(static_cast<std::size_t>(index)); }

 private:
  const SavedDeclaration* declaration_;
  PassLedger* ledger_;
  std::vector<PassTensor> tensors_;
  std::vector<PassSaved> children_;
};

}  // namespace primus::model
