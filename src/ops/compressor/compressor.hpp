#pragma once
// Keys of neighbouring tokens put into one by learnt weights (DeepSeek-V4):
//   entry_d = Σ_j softmax_j(gate_jd + bias_jd) · key_jd over the tokens j of a window, channel by channel.
// With overlap a token has two keys: the first counts in the window behind its own, the second in its own, so that an
// entry has 2·R terms. The first entry of a document has those of its own window alone.
// Legend: B batch, S sequence, R tokens of a window, C entries of a sequence (windows.hpp), D size of an entry, E = D,
// or 2·D with overlap. CPU only.
#include "ops/compressor/windows.hpp"

namespace primus::ops {

enum class WindowOverlap { kNone, kPrevious };

/// key and gate [B, S, E]: any strides of the first two axes; bias in fp32 (fp64 beside fp64).
struct CompressorInput {
  Tensor key_BSE, gate_BSE;
  Tensor bias_RE;
};

/// entry_BCD <- the entries; 0 past a sequence's last one.
void compressor_forward(const CompressorInput& in, const Windowing& windowing, WindowOverlap overlap,
                        Tensor& entry_BCD);

/// dkey and dgate (overwritten; 0 where a token is in no entry) from dentry, whose rows past the last entry are not
/// read; gradient.bias_RE is added to.
void compressor_backward(const Tensor& dentry_BCD, const CompressorInput& in, const Windowing& windowing,
                         WindowOverlap overlap, CompressorInput& gradient);

}  // namespace primus::ops
