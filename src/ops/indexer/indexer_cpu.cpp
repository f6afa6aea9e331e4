#include "ops/indexer/indexer.hpp"

#include "ops/attention/selected_keys.hpp"
#include "ops/indexer/indexer_scores.hpp"
#include "ops/not_on_gpu.hpp"
#include "ops/zone.hpp"

namespace primus::ops {
namespace {

using attention::kKeysPerWord;

template <typename Acc>
struct Candidate {
  Acc score;
  std::int32_t key;
};

/// Puts the k best of `candidates` first. A score that is no number is worse than any.
template <typename Acc>
void put_best_first(std::vector<Candidate<Acc>>& candidates, std::int64_t k) {
  std::nth_element(candidates.begin(), candidates.begin() + k, candidates.end(), [](const auto& a, const auto& b) {
    return a.score > b.score || (a.score == b.score && a.key < b.key);
  });
}

void set_bit(std::int32_t* words, std::int64_t key) {
  auto& word = words[key / kKeysPerWord];
  word = static_cast<std::int32_t>(static_cast<std::uint32_t>(word) | 1U << (key % kKeysPerWord));
}

template <typename Acc>
void select_row(const Acc* scores, std::int64_t first_key, std::int64_t end_key, std::int64_t top_k,
                std::vector<Candidate<Acc>>& candidates, std::int32_t* words) {
  if (end_key - first_key <= top_k) {
    for (std::int64_t key = first_key; key < end_key; ++key) set_bit(words, key);
    return;
  }
  candidates.clear();
  for (std::int64_t key = first_key; key < end_key; ++key) {
    const Acc score = *scores++;
    candidates.push_back(
        {score == score ? score : -std::numeric_limits<Acc>::infinity(), static_cast<std::int32_t>(key)});
  }
  put_best_first(candidates, top_k);
  for (std::int64_t i = 0; i < top_k; ++i) set_bit(words, candidates[static_cast<std::size_t>(i)].key);
}

template <typename T>
void select(const indexer::Scores<T>& scorer, std::int64_t top_k, std::int32_t* words) {
  using Acc = acc_t<T>;
  const attention::Sizes& sizes = scorer.sizes();
  const std::int64_t num_words = at::divup(scorer.num_keys(), kKeysPerWord);
  const std::int64_t rows = indexer::kQueries;
  const Tensor packed = attention::scratch<Acc>(sizes.batch, scorer.cuts().keys());
  const Tensor buffers = attention::scratch<Acc>(at::get_num_threads(), scorer.cuts().choice_worker());
  const auto panels = [&](std::int64_t batch) { return packed.data_ptr<Acc>() + batch * packed.size(1); };
  for_each_unit(sizes.batch, [&](std::int64_t, std::int64_t batch) { scorer.pack_keys(batch, panels(batch)); });
  for_each_unit(sizes.batch * scorer.blocks(), [&](std::int64_t worker, std::int64_t unit) {
    const indexer::Block block = scorer.block(unit / scorer.blocks(), scorer.blocks() - 1 - unit % scorer.blocks());
    Acc* const scores = buffers.data_ptr<Acc>() + worker * buffers.size(1);
    Acc* const product = scores + rows * scorer.stride();
    if (block.end - block.begin > top_k) {
      scorer.scores(block, panels(block.batch), product + rows * scorer.stride(), product, scores);
    }
    std::vector<Candidate<Acc>> candidates;
    for (std::int64_t row = 0; row < block.rows; ++row) {
      const std::int64_t first = scorer.first_column(block, row);
      std::int32_t* own = words + (block.batch * sizes.sequence + block.first_query + row) * num_words;
      select_row(scores + row * scorer.stride() + first, block.begin + first,
                 block.begin + scorer.end_column(block, row), top_k, candidates, own);
    }
  });
}

}  // namespace

void indexer_select(const IndexerInput& in, const IndexerOptions& options, const AttentionOptions& attention,
                    Tensor& selected_BSW) {
  const ZoneScope zone(Zone::kAttentionForward);
  if (in.q_BSID.is_cuda()) throw_not_on_gpu(options.entries ? "compress_ratios" : "experimental_attention_variant");
  PRIMUS_CHECK(options.top_k >= 1, "indexer: the best {} keys", options.top_k);
  selected_BSW.zero_();
  dispatch_floating(in.q_BSID.scalar_type(), "indexer_select", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const indexer::Scores<T> scorer(in, options, attention);
    const attention::SelectedKeys checked(scorer.sizes(), selected_BSW, scorer.num_keys());
    if (in.q_BSID.numel() > 0) select(scorer, options.top_k, selected_BSW.data_ptr<std::int32_t>());
  });
}

}  // namespace primus::ops
