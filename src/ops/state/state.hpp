#pragma once
// Optimizer state held in few bits: fp32 and fp64 as they are; bf16, fp16 and fp8 (e4m3) rounded to one of the two
// neighbours by chance, so that the mean is right: rounded to the nearest, a moment that shrinks by less than half a
// step would never shrink. fp16 and fp8 have one fp32 scale for kStateBlock elements, a power of two
// that brings the block's largest magnitude near the type's. With state_code.hpp the only place that knows how state is
// stored.
#include "model/optimizer_spec.hpp"
#include "ops/dtype.hpp"
#include "ops/state/state_code.hpp"

namespace primus::ops {

struct StoredState {
  DType type = DType::kFloat32;
  StateForm form = StateForm::kPlain;
  Tensor values;   // in libtorch's type of `type`
  Tensor scale_B;  // fp32, one a block; undefined where the type has no scale

  bool is_held() const { return values.defined(); }
};

/// Zeros for as many elements as `like` has, on its device or where that reaches into the host's memory. Second moments
/// in a scaled type take kRoot.
StoredState make_state(const Tensor& like, DType type, StateForm form = StateForm::kPlain,
                       model::StatePlace place = model::StatePlace::kDevice);

/// Zeros of the shape of `like` at that place.
Tensor state_zeros(const Tensor& like, at::IntArrayRef shape, at::ScalarType type, model::StatePlace place);

/// Elements [begin, begin + count) in fp32 or, for fp64 state, fp64; `begin` is a multiple of kStateBlock.
template <typename Acc>
void load_state(const StoredState& state, std::int64_t begin, std::int64_t count, Acc* values);

/// Stores them; count is a multiple of kStateBlock too, or reaches the end.
template <typename Acc>
void store_state(const Acc* values, std::int64_t begin, std::int64_t count, Rounding rounding, StoredState& state);

/// Shares the elements among threads in ranges of whole blocks.
void for_each_state_range(std::int64_t num_elements,
                          const std::function<void(std::int64_t first, std::int64_t count)>& body);

/// All elements as a flat tensor in the accumulator's type, and back; the work is the host's, wherever the state is.
Tensor load_state(const StoredState& state);
void store_state(const Tensor& values, Rounding rounding, StoredState& state);

}  // namespace primus::ops
