#include "train/logits.hpp"

#include <algorithm>
#include <optional>
#include <span>

#include "checkpoint/export.hpp"
#include "checkpoint/refuse.hpp"
#include "model/architecture.hpp"
#include "nn/model.hpp"
#include "nn/norm.hpp"
#include "nn/rope_tables.hpp"
#include "ops/allocator.hpp"
#include "ops/cross_entropy/cross_entropy.hpp"
#include "ops/gemm/gemm.hpp"
#include "train/initial_weights.hpp"

// Legend: B sequences, S sequence length, T = B·S, H hidden, V vocabulary.
namespace primus::train {
namespace {

using at::Tensor;
using checkpoint::refuse;
using checkpoint::SafetensorsFile;

constexpr std::int64_t kNotCounted = -100;  // transformers' label of a token without loss

struct Tokens {
  model::BatchShape batch;
  Tensor ids_T;
  nn::LossInput loss;
};

/// An int64 [B, S] of the file; the shape must be `expected`, where there is one.
Tensor read_ids(const SafetensorsFile& file, const std::string& name,
                std::optional<std::vector<std::int64_t>> expected) {
  const checkpoint::StoredTensor* tensor = file.find(name);
  if (tensor == nullptr) refuse({.file = file.path(), .key = name, .message = "is missing", .expected = "I64 [B, S]"});
  const bool is_integer = tensor->type->dtype == DType::kInt64 || tensor->type->dtype == DType::kInt32;
  const bool fits = tensor->shape.size() == 2 && (!expected || tensor->shape == *expected) && tensor->num_bytes > 0;
  if (!is_integer || !fits) {
    refuse({file.path(), name, "cannot be used",
            expected ? fmt::format("I64 or I32 {}", checkpoint::shape_text(*expected)) : "I64 or I32 [B, S]",
            fmt::format("{} {}", tensor->type->name, checkpoint::shape_text(tensor->shape))});
  }
  Tensor ids = at::empty(tensor->shape, ops::to_aten(*tensor->type->dtype));
  file.read(*tensor, 0, {static_cast<std::byte*>(ids.data_ptr()), static_cast<std::size_t>(tensor->num_bytes)});
  return ids.to(at::kLong);
}

void check_range(const Tensor& ids, const std::string& file, const std::string& name, std::int64_t lowest,
                 std::int64_t vocab_size) {
  const auto least = ids.min().item<std::int64_t>();
  const auto most = ids.max().item<std::int64_t>();
  if (least >= lowest && most < vocab_size) return;
  refuse({file, name, "holds a number that is no token of the model", fmt::format("0 to {}", vocab_size - 1),
          std::to_string(least < lowest ? least : most)});
}

/// Position s predicts label s + 1; the last one predicts nothing.
Tokens read_tokens(const std::string& path, std::int64_t vocab_size, at::ScalarType statistics, at::Device device) {
  const SafetensorsFile file(path);
  const Tensor ids_BS = read_ids(file, "input_ids", std::nullopt);
  check_range(ids_BS, path, "input_ids", 0, vocab_size);
  Tensor labels_BS = ids_BS;
  if (file.find("labels") != nullptr) {
    labels_BS = read_ids(file, "labels", std::vector<std::int64_t>(ids_BS.sizes().begin(), ids_BS.sizes().end()));
    check_range(labels_BS, path, "labels", kNotCounted, vocab_size);
  }
  const std::int64_t length = ids_BS.size(1);
  Tensor next_BS = at::empty(ids_BS.sizes(), ids_BS.options()).fill_(kNotCounted);
  next_BS.narrow(1, 0, length - 1).copy_(labels_BS.narrow(1, 1, length - 1));
  const Tensor counts_BS = next_BS.ge(0);
  const auto num_counted = counts_BS.sum().item<std::int64_t>();
  if (num_counted == 0)
    refuse({.file = path, .message = "no token has a loss", .expected = "sequences of two tokens or more"});
  Tokens tokens;
  tokens.batch = {.num_sequences = ids_BS.size(0), .seq_length = length};
  tokens.ids_T = ids_BS.flatten().to(device);
  tokens.loss.label_T = next_BS.clamp_min(0).flatten().to(device);
  tokens.loss.mask_T = counts_BS.flatten().to(statistics).to(device);
  tokens.loss.inverse_num_tokens = 1.0 / static_cast<double>(num_counted);
  return tokens;
}

model::NumericPolicy policy_of(DType dtype) {
  if (dtype == DType::kFloat64) return model::float64_policy();
  model::NumericPolicy policy;
  policy.parameters = policy.activations = dtype;
  return policy;
}

void refuse_unbuilt(const checkpoint::StoredModel& stored) {
  std::vector<Problem> problems;
  for (const model::ArchitecturePart& part : model::unsupported_parts(stored.experiment)) {
    problems.push_back({.file = stored.folder.string(),
                        .key = part.key,
                        .message = fmt::format("{}: not built in this release", part.name)});
  }
  if (!problems.empty()) throw ConfigError(std::move(problems));
}

/// The logits and the mean loss alone: what balances experts in a training, and further depths, are no part of them.
model::ModelSpec without_extras(model::ModelSpec spec) {
  spec.num_mtp_layers = 0;
  spec.dropout = {};
  if (spec.moe) spec.moe->router.losses = {};
  return spec;
}

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

/// What is written, in this order.
struct Output {
  Tensor logits_BSV;
  double loss = 0.0;
  std::vector<Tensor> gradients;  // of the parameters; empty: not asked for
};

/// The logits once more from what forward kept: it makes a chunk of them at a time and keeps none.
Tensor logits(const nn::Model& model, nn::Saved& saved, const model::ModelSpec& spec, nn::ParameterStore& parameters,
              model::BatchShape batch) {
  const Tensor normed_TH = model.normed_output(saved);
  const bool is_tied = spec.output_weight == model::OutputWeight::kTiedToEmbedding;
  const Tensor& weight = parameters.get(is_tied ? "embedding.word_embeddings.weight" : "output_layer.weight").weight;
  Tensor logits_TV = at::empty({batch.num_tokens(), weight.size(0)}, normed_TH.options());
  ops::linear_forward(normed_TH, weight, logits_TV);
  ops::bound_logits({.scale = spec.logits.scale, .softcap = spec.logits.softcap}, logits_TV);
  return logits_TV.narrow(1, 0, spec.vocab_size).reshape({batch.num_sequences, batch.seq_length, spec.vocab_size});
}

Output pass(const model::ModelSpec& spec, const model::NumericPolicy& policy, nn::ParameterStore& parameters,
            const Tokens& tokens, Gradients gradients) {
  constexpr auto kFusion = model::LossFusion::kFused;
  nn::Model model(spec, policy, kFusion, parameters);
  const nn::StepContext step = {
      .mode = nn::Mode::kTraining,
      .weight_grad = nn::WeightGradTiming::kWithBackward,
      .batch = tokens.batch,
      .rope = nn::rope_tables(spec.rope, tokens.batch.seq_length,
                              at::TensorOptions(ops::to_aten(policy.statistics)).device(parameters.device()))};
  nn::Saved saved(model::model_saved(spec, policy, tokens.batch, kFusion), parameters.device());
  const nn::MicroBatchInput input{.ids_T = tokens.ids_T, .loss = tokens.loss};
  parameters.begin_gradients(nn::GradientMemory::kResident);
  Output output;
  output.loss = model.forward(input, saved, step).item<double>() * tokens.loss.inverse_num_tokens;
  const at::ScalarType written = ops::to_aten(policy.statistics);
  output.logits_BSV = logits(model, saved, spec, parameters, tokens.batch).to(written).to(at::kCPU).contiguous();
  if (gradients == Gradients::kNo) return output;
  model.backward(input, saved, step);
  parameters.complete_gradients();
  for (const auto& parameter : parameters.all())
    output.gradients.push_back(parameter->main_grad.defined() ? parameter->main_grad.to(at::kCPU) : Tensor());
  return output;
}

/// Gradients leave under the names that the parameters have there; buffers have none.
class GradientNames {
 public:
  GradientNames(const checkpoint::StoredModel& stored, const std::vector<model::ParameterDescriptor>& parameters,
                Gradients wanted) {
    if (wanted == Gradients::kNo) return;
    const auto exported = checkpoint::write_hugging_face_config(stored.experiment, stored.source_config,
                                                                DType::kFloat32, stored.folder.string());
    mapping_ = checkpoint::map_tensors(parameters, exported.architecture);
    blocks_ = checkpoint::blocks_by_tensor(mapping_);
  }

  void add_to(std::vector<checkpoint::StoredTensor>& tensors, DType dtype) const {
    for (const checkpoint::HuggingFaceTensor& tensor : mapping_.tensors) {
      if (tensor.trained == model::Trained::kNo) continue;
      tensors.push_back({.name = tensor.name, .type = &checkpoint::element_type(dtype), .shape = tensor.shape});
    }
  }

  void write(checkpoint::SafetensorsWriter& writer, const std::vector<Tensor>& gradients, DType dtype) const {
    const std::int64_t bytes = size_bytes(dtype);
    const auto read = [&](std::size_t parameter, std::int64_t begin, std::span<std::byte> out) {
      const auto all = bytes_of(gradients[parameter]);
      std::ranges::copy(all.subspan(static_cast<std::size_t>(begin * bytes), out.size()), out.begin());
    };
    for (std::size_t i = 0; i < mapping_.tensors.size(); ++i) {
      if (mapping_.tensors[i].trained == model::Trained::kNo) continue;
      checkpoint::stream_tensor(blocks_[i], bytes, read, [&](std::span<const std::byte> part) {
        writer.append(mapping_.tensors[i].name, part);
      });
    }
  }

 private:
  checkpoint::TensorMapping mapping_;
  std::vector<std::vector<checkpoint::Block>> blocks_;
};

void write_output(const std::string& path, const Output& output, const GradientNames& names, DType statistics,
                  DType gradients) {
  std::vector<checkpoint::StoredTensor> tensors;
  tensors.push_back({.name = "loss", .type = &checkpoint::element_type(DType::kFloat64), .shape = {}});
  tensors.push_back({.name = "logits",
                     .type = &checkpoint::element_type(statistics),
                     .shape = {output.logits_BSV.sizes().begin(), output.logits_BSV.sizes().end()}});
  if (!output.gradients.empty()) names.add_to(tensors, gradients);
  checkpoint::SafetensorsWriter writer(path, std::move(tensors));
  writer.append("loss", std::as_bytes(std::span(&output.loss, 1)));
  writer.append("logits", bytes_of(output.logits_BSV));
  if (!output.gradients.empty()) names.write(writer, output.gradients, gradients);
  writer.finish();
}

}  // namespace

void run_logits(const LogitsRequest& request) {
  ops::install_allocator();
  const checkpoint::StoredModel stored = checkpoint::open_model(request.model);
  refuse_unbuilt(stored);
  std::string why_cpu;
  const at::Device device = ops::select_device(request.device, why_cpu);
  const model::NumericPolicy policy = policy_of(request.dtype);
  const model::ModelSpec spec = without_extras(stored.spec);
  const std::vector<model::ParameterDescriptor> descriptors = checkpoint::parameters_of(spec);
  const GradientNames names(stored, descriptors, request.gradients);
  const Tokens tokens = read_tokens(request.tokens, spec.vocab_size, ops::to_aten(policy.statistics), device);
  nn::ParameterStore parameters(descriptors, policy, 0, device);
  fill_by_name(*stored.weights, parameters);
  const Output output = pass(spec, policy, parameters, tokens, request.gradients);
  write_output(request.out, output, names, policy.statistics, policy.main_gradients);
}

}  // namespace primus::train
