#pragma once
// One hyper-connection of the model: its parameters around ops/hyper_connection. Legend: T tokens, N streams, H hidden,
// C = N·H, M logits.
#include "nn/parameter.hpp"
#include "nn/saved.hpp"
#include "ops/hyper_connection/hyper_connection.hpp"

namespace primus::nn {

class HyperConnection {
 public:
  /// `name` without ".weight". The model has several residual streams.
  HyperConnection(const model::ModelSpec& spec, const std::string& name, ParameterStore& parameters);

  /// What the weights for x_TC are made of: taken from `saved`, or made and left there.
  const Tensor& mix(const Tensor& x_TC, int mix_slot, Saved& saved) const;
  /// z_TH, in a tensor of its own.
  Tensor read(const Tensor& x_TC, const Tensor& mix_TM) const;
  void write(const Tensor& x_TC, const Tensor& y_TH, const Tensor& mix_TM, Tensor& out_TC) const;

  /// dy_TH (overwritten). dstreams_TC: the gradient of what was written, left as read_backward wants it; so is what is
  /// returned.
  Tensor write_backward(const Tensor& x_TC, const Tensor& y_TH, const Tensor& mix_TM, Tensor& dstreams_TC,
                        Tensor& dy_TH) const;
  /// Adds to dstreams_TC and to the parameters' gradients.
  void read_backward(const Tensor& dz_TH, const Tensor& x_TC, const Tensor& mix_TM, Tensor dweight_TM,
                     Tensor& dstreams_TC);

 private:
  /// With the parameters in the type of sums beside x.
  ops::HyperConnection values(const Tensor& x_TC) const;

  std::int64_t num_streams_;
  double norm_epsilon_, epsilon_;
  ops::RootEpsilon norm_epsilon_at_;
  int sinkhorn_iterations_;
  Parameter& weight_;
  Parameter& bias_;
  Parameter& scale_;
};

/// One hidden state a token becomes each of its streams: x_TC, overwritten.
void copy_to_streams(const Tensor& x_TH, Tensor& x_TC);
/// One hidden state a token, the same share of each of its streams, of which there are several.
Tensor mean_of_streams(const Tensor& x_TC, std::int64_t num_streams);
/// The gradient of copy_to_streams; dx_TC itself where there is one stream.
Tensor sum_of_streams(const Tensor& dx_TC, std::int64_t num_streams);

}  // namespace primus::nn
