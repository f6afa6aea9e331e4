#pragma once
// Attention over compressed keys beside attention over a window (DeepSeek-V4). One softmax spans both: `attention` goes
// first, and its outputs are then extended by the entries, block by block of queries; S × S scores are never held.
// All heads share an entry, which is key and value at once.
// Legend: B batch, S sequence, A heads, D their size, C entries of a sequence (ops/compressor/windows.hpp), W =
// ceil(C / 32) words of bits. CPU only.
#include "ops/compressor/windows.hpp"

namespace primus::ops {

struct CompressedAttentionOptions {
  double scale = 1.0;
  Windowing windowing;
  Tensor selected_BSW = {};  // int32, bits as in AttentionOptions, of entries; undefined: all that a query sees
};

/// context and lse (fp32 or fp64), those of attention over other keys, become those over the entries too.
/// q and context [B,S,A,D]: any strides, innermost 1; entry [B,C,D] likewise.
void compressed_attention_forward(const Tensor& q_BSAD, const Tensor& entry_BCD,
                                  const CompressedAttentionOptions& options, Tensor& context_BSAD, Tensor& lse_BAS);

/// The entries' share of the gradients, from the outputs over all keys: dq is added to, dentry overwritten (0 past a
/// sequence's last entry). The other keys' share is attention_backward's with the same context and lse.
void compressed_attention_backward(const Tensor& dcontext_BSAD, const Tensor& q_BSAD, const Tensor& entry_BCD,
                                   const Tensor& context_BSAD, const Tensor& lse_BAS,
                                   const CompressedAttentionOptions& options, Tensor& dq_BSAD, Tensor& dentry_BCD);

}  // namespace primus::ops
