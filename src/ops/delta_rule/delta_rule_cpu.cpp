#include "ops/delta_rule/delta_rule.hpp"

#include "model/host_cuts.hpp"
#include "ops/delta_rule/delta_chunk.hpp"
#include "ops/for_each_unit.hpp"
#include "ops/zone.hpp"

// A unit is a key head of a sequence with the value heads that share it: it walks the chunks in order, and back.
namespace primus::ops {
namespace {

constexpr double kLengthEpsilon = 1e-6;  // added to the squared length of a query or key

/// Heads of a tensor [T, heads, size].
template <typename T>
struct Heads {
  T* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;

  Heads(const Tensor& x, std::int64_t tokens, std::int64_t heads, std::int64_t size, const char* name)
      : data(x.data_ptr<std::remove_const_t<T>>()), token_stride(x.stride(0)), head_stride(x.stride(1)) {
    PRIMUS_CHECK(x.dim() == 3 && x.size(0) == tokens && x.size(1) == heads && x.size(2) == size,
                 "delta_rule: shape of {}", name);
    PRIMUS_CHECK(x.stride(2) == 1 || size <= 1, "delta_rule: heads of {} must be dense", name);
  }
  T* at(std::int64_t token, std::int64_t head) const { return data + token * token_stride + head * head_stride; }
};

struct Shape {
  std::int64_t tokens = 0, key_heads = 0, value_heads = 0;
  delta::Sizes sizes;  // rows: of a whole chunk
  std::int64_t seq_length = 0;

  std::int64_t heads_of_key() const { return value_heads / key_heads; }
  std::int64_t num_units() const { return cuts(0).sizes.num_units(); }
  model::DeltaCuts cuts(std::int64_t element_bytes) const {
    return {{.batch = tokens / seq_length,
             .sequence = seq_length,
             .key_heads = key_heads,
             .value_heads = value_heads,
             .key_size = sizes.key,
             .value_size = sizes.value,
             .decay_width = sizes.decay_width,
             .chunk_size = sizes.rows},
            element_bytes};
  }
};

Shape shape_of(const DeltaRule& in, const char* op) {
  PRIMUS_CHECK(in.q_TGK.dim() == 3 && in.v_TAV.dim() == 3 && in.log_decay.dim() >= 2, "{}: shapes", op);
  Shape shape{.tokens = in.v_TAV.size(0),
              .key_heads = in.q_TGK.size(1),
              .value_heads = in.v_TAV.size(1),
              .sizes = {.rows = std::min(in.chunk_size, in.seq_length),
                        .key = in.q_TGK.size(2),
                        .value = in.v_TAV.size(2),
                        .decay_width = in.log_decay.dim() == 3 ? in.q_TGK.size(2) : 1},
              .seq_length = in.seq_length};
  PRIMUS_CHECK(shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0, "{}: {} value heads for {} key heads",
               op, shape.value_heads, shape.key_heads);
  PRIMUS_CHECK(in.chunk_size > 0 && in.seq_length > 0 && shape.tokens % in.seq_length == 0,
               "{}: {} tokens in sequences of {}", op, shape.tokens, in.seq_length);
  const std::int64_t heads = shape.tokens * shape.value_heads;
  PRIMUS_CHECK(in.beta_TA.numel() == heads && in.beta_TA.is_contiguous() && in.log_decay.is_contiguous() &&
                   in.log_decay.numel() == heads * shape.sizes.decay_width,
               "{}: shapes of decay and beta", op);
  const at::ScalarType wide = accumulator_type(in.v_TAV.scalar_type());
  PRIMUS_CHECK(in.beta_TA.scalar_type() == wide && in.log_decay.scalar_type() == wide, "{}: types of decay and beta",
               op);
  PRIMUS_CHECK(
      !in.first_key_BS.defined() || (in.first_key_BS.numel() == shape.tokens &&
                                     in.first_key_BS.scalar_type() == at::kInt && in.first_key_BS.is_contiguous()),
      "{}: first keys of {} tokens", op, shape.tokens);
  return shape;
}

/// Tokens [begin, end) of a sequence; the first of a document's chunks starts from nothing.
struct Span {
  std::int64_t begin = 0, end = 0;
  enum class State { kNone, kCarried } before = State::kNone;
  std::int64_t carried = 0;  // of the spans before it, those that start from another one's state
};

/// A sequence's chunks: each document is cut up from its own first token on.
std::vector<Span> spans_of(const DeltaRule& in, std::int64_t sequence) {
  const std::int32_t* first_key =
      in.first_key_BS.defined() ? in.first_key_BS.const_data_ptr<std::int32_t>() + sequence * in.seq_length : nullptr;
  std::vector<Span> spans;
  std::int64_t carried = 0;
  for (std::int64_t begin = 0; begin < in.seq_length;) {
    const std::int64_t document = first_key != nullptr ? first_key[begin] : 0;
    std::int64_t end = begin + 1;
    while (end < in.seq_length && end - begin < in.chunk_size &&
           (first_key != nullptr ? first_key[end] : 0) == document) {
      ++end;
    }
    const Span::State before = begin == document ? Span::State::kNone : Span::State::kCarried;
    spans.push_back({begin, end, before, carried});
    carried += before == Span::State::kCarried ? 1 : 0;
    begin = end;
  }
  return spans;
}

enum class Direction { kForward, kBackward };

template <typename T>
class Worker {
 public:
  using Acc = acc_t<T>;

  Worker(const Shape& shape, const DeltaRule& in, Direction direction)
      : shape_(shape),
        in_(in),
        arena_(num_bytes(shape, direction)),
        q_(in.q_TGK, shape.tokens, shape.key_heads, shape.sizes.key, "q"),
        k_(in.k_TGK, shape.tokens, shape.key_heads, shape.sizes.key, "k"),
        v_(in.v_TAV, shape.tokens, shape.value_heads, shape.sizes.value, "v"),
        chunk_(shape.sizes.rows, shape.sizes.key, shape.sizes.value, arena_),
        query_(take(shape.sizes.key)),
        key_(take(shape.sizes.key)),
        query_factor_(take(1)),
        key_factor_(take(1)),
        value_(take(shape.sizes.value)),
        decay_(take(shape.sizes.decay_width)),
        beta_(take(1)),
        y_(take(shape.sizes.value)),
        states_(arena_.take<Acc>(shape.heads_of_key() * state_size())) {
    if (direction == Direction::kBackward) {
      dquery_ = take(shape.sizes.key);
      dkey_ = take(shape.sizes.key);
      dstates_ = arena_.take<Acc>(shape.heads_of_key() * state_size());
      before_ = arena_.take<Acc>(shape.cuts(sizeof(Acc)).carried_states() * shape.heads_of_key() * state_size());
    }
    arena_.check_used_up();
  }

  void forward(std::int64_t unit, const Heads<T>& y) {
    place(unit);
    for (const Span& span : spans_of(in_, sequence_)) {
      const delta::Sizes sizes = load_keys(span);
      for (std::int64_t head = 0; head < shape_.heads_of_key(); ++head) {
        load_values(span, head);
        chunk_.forward(sizes, head_rows(), state(head), y_.data());
        store(y_.data(), sizes.value, span, value_head(head), y);
      }
    }
  }

  struct Output {
    Heads<T> q, k, v;
    Acc* log_decay;
    Acc* beta;
  };

  void backward(std::int64_t unit, const Heads<const T>& dy, const Output& gradient) {
    place(unit);
    const std::vector<Span> spans = spans_of(in_, sequence_);
    remember_states(spans);
    std::fill(dstates_.begin(), dstates_.end(), Acc{0});
    for (std::size_t i = spans.size(); i-- > 0;) {
      const Span& span = spans[i];
      const delta::Sizes sizes = load_keys(span);
      std::fill(dquery_.begin(), dquery_.end(), Acc{0});
      std::fill(dkey_.begin(), dkey_.end(), Acc{0});
      for (std::int64_t head = 0; head < shape_.heads_of_key(); ++head) {
        load_values(span, head);
        load(dy, span, value_head(head), sizes.value, y_.data());
        Acc* dstate = dstates_.data() + head * state_size();
        chunk_.backward(sizes, head_rows(), state_before(span, head), y_.data(), dstate,
                        {dquery_.data(), dkey_.data(), value_.data(), decay_.data(), beta_.data()});
        // The state before a document is nothing, whoever's tokens stand there.
        if (span.before == Span::State::kNone) std::fill_n(dstate, state_size(), Acc{0});
        store(value_.data(), sizes.value, span, value_head(head), gradient.v);
        store_statistics(span, head, gradient);
      }
      unit_length_backward(query_, query_factor_, scale(), sizes, dquery_);
      unit_length_backward(key_, key_factor_, Acc{1}, sizes, dkey_);
      store(dquery_.data(), sizes.key, span, key_head_, gradient.q);
      store(dkey_.data(), sizes.key, span, key_head_, gradient.k);
    }
  }

 private:
  static std::int64_t num_bytes(const Shape& shape, Direction direction) {
    const model::DeltaCuts cuts = shape.cuts(sizeof(Acc));
    return cuts.worker_bytes() + (direction == Direction::kBackward ? cuts.backward_bytes() : 0);
  }
  /// Rows of a chunk.
  std::span<Acc> take(std::int64_t width) { return arena_.take<Acc>(shape_.sizes.rows * width); }

  Acc scale() const { return Acc{1} / std::sqrt(static_cast<Acc>(shape_.sizes.key)); }
  std::int64_t state_size() const { return shape_.sizes.key * shape_.sizes.value; }
  std::int64_t value_head(std::int64_t head) const { return key_head_ * shape_.heads_of_key() + head; }
  Acc* state(std::int64_t head) { return states_.data() + head * state_size(); }
  /// Where the state before a chunk that goes on from another one is remembered.
  Acc* remembered(const Span& span, std::int64_t head) {
    return before_.data() + (span.carried * shape_.heads_of_key() + head) * state_size();
  }
  /// Behind load_keys: which leaves nothing in the states where a document begins.
  const Acc* state_before(const Span& span, std::int64_t head) {
    return span.before == Span::State::kNone ? state(head) : remembered(span, head);
  }
  delta::HeadRows<Acc> head_rows() const {
    return {query_.data(), key_.data(), value_.data(), decay_.data(), beta_.data()};
  }

  void place(std::int64_t unit) {
    sequence_ = unit / shape_.key_heads;
    key_head_ = unit % shape_.key_heads;
    first_ = sequence_ * shape_.seq_length;
  }

  void load(const Heads<const T>& from, const Span& span, std::int64_t head, std::int64_t width, Acc* to) const {
    for (std::int64_t s = span.begin; s < span.end; ++s, to += width) {
      const T* row = from.at(first_ + s, head);
#pragma omp simd
      for (std::int64_t d = 0; d < width; ++d) to[d] = static_cast<Acc>(row[d]);
    }
  }

  void store(const Acc* from, std::int64_t width, const Span& span, std::int64_t head, const Heads<T>& to) const {
    for (std::int64_t s = span.begin; s < span.end; ++s, from += width) {
      T* row = to.at(first_ + s, head);
#pragma omp simd
      for (std::int64_t d = 0; d < width; ++d) row[d] = to_storage<T>(from[d]);
    }
  }

  /// Rows to length `length`; the factors that did it stay.
  static void to_length(Acc length, const delta::Sizes& sizes, std::span<Acc> x, std::span<Acc> factors) {
    for (std::int64_t i = 0; i < sizes.rows; ++i) {
      Acc* row = x.data() + i * sizes.key;
      Acc sum = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t d = 0; d < sizes.key; ++d) sum += row[d] * row[d];
      const Acc factor = length / std::sqrt(sum + static_cast<Acc>(kLengthEpsilon));
      factors[static_cast<std::size_t>(i)] = factor;
#pragma omp simd
      for (std::int64_t d = 0; d < sizes.key; ++d) row[d] *= factor;
    }
  }

  /// dx becomes the gradient of the rows before `to_length`, which gave x.
  static void unit_length_backward(std::span<const Acc> x, std::span<const Acc> factors, Acc length,
                                   const delta::Sizes& sizes, std::span<Acc> dx) {
    for (std::int64_t i = 0; i < sizes.rows; ++i) {
      const Acc* row = x.data() + i * sizes.key;
      Acc* drow = dx.data() + i * sizes.key;
      Acc along = 0;
#pragma omp simd reduction(+ : along)
      for (std::int64_t d = 0; d < sizes.key; ++d) along += row[d] * drow[d];
      along /= length * length;
      const Acc factor = factors[static_cast<std::size_t>(i)];
#pragma omp simd
      for (std::int64_t d = 0; d < sizes.key; ++d) drow[d] = factor * (drow[d] - along * row[d]);
    }
  }

  delta::Sizes load_keys(const Span& span) {
    delta::Sizes sizes = shape_.sizes;
    sizes.rows = span.end - span.begin;
    load(q_, span, key_head_, sizes.key, query_.data());
    load(k_, span, key_head_, sizes.key, key_.data());
    to_length(scale(), sizes, query_, query_factor_);
    to_length(Acc{1}, sizes, key_, key_factor_);
    if (span.before == Span::State::kNone) std::fill(states_.begin(), states_.end(), Acc{0});
    return sizes;
  }

  void load_values(const Span& span, std::int64_t head) {
    load(v_, span, value_head(head), shape_.sizes.value, value_.data());
    const std::int64_t width = shape_.sizes.decay_width;
    const Acc* decay = in_.log_decay.template const_data_ptr<Acc>();
    const Acc* beta = in_.beta_TA.template const_data_ptr<Acc>();
    for (std::int64_t s = span.begin; s < span.end; ++s) {
      const std::int64_t at = (first_ + s) * shape_.value_heads + value_head(head);
      std::copy_n(decay + at * width, width, decay_.data() + (s - span.begin) * width);
      beta_[static_cast<std::size_t>(s - span.begin)] = beta[at];
    }
  }

  void store_statistics(const Span& span, std::int64_t head, const Output& gradient) const {
    const std::int64_t width = shape_.sizes.decay_width;
    for (std::int64_t s = span.begin; s < span.end; ++s) {
      const std::int64_t at = (first_ + s) * shape_.value_heads + value_head(head);
      std::copy_n(decay_.data() + (s - span.begin) * width, width, gradient.log_decay + at * width);
      gradient.beta[at] = beta_[static_cast<std::size_t>(s - span.begin)];
    }
  }

  /// The states before every chunk that goes on from another one.
  void remember_states(const std::vector<Span>& spans) {
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const delta::Sizes sizes = load_keys(spans[i]);
      for (std::int64_t head = 0; head < shape_.heads_of_key(); ++head) {
        if (spans[i].before == Span::State::kCarried) {
          std::copy_n(state(head), state_size(), remembered(spans[i], head));
        }
        if (i + 1 == spans.size() || spans[i + 1].before == Span::State::kNone) continue;
        load_values(spans[i], head);
        chunk_.forward(sizes, head_rows(), state(head), nullptr);
      }
    }
  }

  Shape shape_;
  const DeltaRule& in_;
  Arena arena_;
  Heads<const T> q_, k_, v_;
  delta::DeltaChunk<Acc> chunk_;
  std::span<Acc> query_, key_, query_factor_, key_factor_, value_, decay_, beta_, y_;
  std::span<Acc> states_;  // of the value heads of a key head, as they move on
  std::span<Acc> dquery_, dkey_, dstates_;
  std::span<Acc> before_;  // states that were carried
  std::int64_t sequence_ = 0, key_head_ = 0, first_ = 0;
};

/// body(worker, unit), with a Worker of its own for each thread.
template <typename T, typename Body>
void for_each_key_head(const Shape& shape, const DeltaRule& in, Direction direction, const Body& body) {
  std::vector<std::unique_ptr<Worker<T>>> workers(static_cast<std::size_t>(at::get_num_threads()));
  for_each_unit(shape.num_units(), [&](std::int64_t worker, std::int64_t unit) {
    std::unique_ptr<Worker<T>>& own = workers[static_cast<std::size_t>(worker)];
    if (own == nullptr) own = std::make_unique<Worker<T>>(shape, in, direction);
    body(*own, unit);
  });
}

}  // namespace

void delta_rule_forward(const DeltaRule& in, Tensor& y_TAV) {
  const ZoneScope zone(Zone::kAttentionForward);
  const Shape shape = shape_of(in, "delta_rule_forward");
  dispatch_floating(in.v_TAV.scalar_type(), "delta_rule_forward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Heads<T> y(y_TAV, shape.tokens, shape.value_heads, shape.sizes.value, "y");
    for_each_key_head<T>(shape, in, Direction::kForward,
                         [&](Worker<T>& worker, std::int64_t unit) { worker.forward(unit, y); });
  });
}

void delta_rule_backward(const Tensor& dy_TAV, const DeltaRule& in, DeltaRuleGradient& gradient) {
  const ZoneScope zone(Zone::kAttentionBackward);
  const Shape shape = shape_of(in, "delta_rule_backward");
  PRIMUS_CHECK(gradient.log_decay.sizes() == in.log_decay.sizes() && gradient.log_decay.is_contiguous() &&
                   gradient.beta_TA.sizes() == in.beta_TA.sizes() && gradient.beta_TA.is_contiguous(),
               "delta_rule_backward: shapes of decay's and beta's gradients");
  dispatch_floating(in.v_TAV.scalar_type(), "delta_rule_backward", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = acc_t<T>;
    const Heads<const T> dy(dy_TAV, shape.tokens, shape.value_heads, shape.sizes.value, "dy");
    const typename Worker<T>::Output output{
        {gradient.q_TGK, shape.tokens, shape.key_heads, shape.sizes.key, "q's gradient"},
        {gradient.k_TGK, shape.tokens, shape.key_heads, shape.sizes.key, "k's gradient"},
        {gradient.v_TAV, shape.tokens, shape.value_heads, shape.sizes.value, "v's gradient"},
        gradient.log_decay.data_ptr<Acc>(),
        gradient.beta_TA.data_ptr<Acc>()};
    for_each_key_head<T>(shape, in, Direction::kBackward,
                         [&](Worker<T>& worker, std::int64_t unit) { worker.backward(unit, dy, output); });
  });
}

}  // namespace primus::ops
