#include <fsdp/tensor_parallel.h>

#include <ATen/OpMathType.h>
#include <fsdp/collectives.h>
#include <fsdp/functional.h>
#include <torch/nn/functional/embedding.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <ostream>
#include <string_view>
#include <utility>

#include "comm/core/check.h"

namespace fsdp {
namespace {

TensorParallelOptions over_an_axis(TensorParallelOptions options) {
  if (!options.axis) options.axis = default_process_group();
  return options;
}

// Throws UsageError if `size` is not a multiple of the axis's number of ranks.
void require_equal_parts(int64_t size, const ProcessGroup& axis, std::string_view layer, std::string_view what) {
  require(size % axis.world_size() == 0, axis.where(std::string(layer)), "expected ", what,
          " to be a multiple of the axis's ", axis.world_size(), " ranks, found ", size,
          ". Choose a different size, or use fewer ranks on the axis.");
}

// Throws UsageError if a number is not in [0, size). Checks only tensors on the CPU, as LibTorch's layers do, because a
// check on a device would make the host wait for the device.
void require_in_range(const at::Tensor& numbers, int64_t size, const std::string& where, std::string_view what) {
  if (!numbers.is_cpu() || numbers.numel() == 0) return;
  const auto [least, greatest] = at::aminmax(numbers);
  require(least.item<int64_t>() >= 0 && greatest.item<int64_t>() < size, where, "expected ", what, " from 0 to ",
          size - 1, ", found ", least.item<int64_t>(), " to ", greatest.item<int64_t>(), '.');
}

std::string form_of(const at::Tensor& tensor) {
  return tensor.defined() ? str_cat(tensor.scalar_type(), " of sizes ", tensor.sizes()) : "an undefined tensor";
}

// Returns a copy of this rank's part of a parameter of the whole layer.
at::Tensor own_part(const at::Tensor& whole, const TensorCut& cut) {
  const auto matrices = whole.detach().unflatten(cut.dim, {cut.fused, -1});
  const int64_t size = matrices.size(cut.dim + 1) / cut.axis->world_size();
  return matrices.narrow(cut.dim + 1, cut.axis->rank() * size, size).flatten(cut.dim, cut.dim + 1).clone();
}

// Returns the whole input of a layer whose ranks each compute a part of the output.
at::Tensor spread(const at::Tensor& input, const TensorParallelOptions& options) {
  return options.sequence_dim ? functional::all_gather(input, *options.sequence_dim, options.axis)
                              : functional::copy_to_ranks(input, options.axis);
}

// Returns the sum of the ranks' partial outputs; with a `sequence_dim`, only this rank's tokens of the sum.
at::Tensor summed(const at::Tensor& parts, const TensorParallelOptions& options) {
  return options.sequence_dim ? functional::reduce_scatter(parts, *options.sequence_dim, options.axis)
                              : functional::reduce_from_ranks(parts, options.axis);
}

void print_linear(std::ostream& stream, std::string_view name, const torch::nn::LinearOptions& options, int parts) {
  stream << name << "(in_features=" << options.in_features() << ", out_features=" << options.out_features()
         << ", bias=" << (options.bias() ? "true" : "false") << ", parts=" << parts << ')';
}

}  // namespace

ColumnParallelLinearImpl::ColumnParallelLinearImpl(const torch::nn::LinearOptions& whole,
                                                   TensorParallelOptions options_of_axis, bool gathers,
                                                   int64_t matrices)
    : options(whole), parallel(over_an_axis(std::move(options_of_axis))), gather_output(gathers), fused(matrices) {
  require(fused >= 1 && options.out_features() % fused == 0, parallel.axis->where("ColumnParallelLinear"),
          "expected out_features to be a multiple of the ", fused, " fused matrices, found ", options.out_features(),
          '.');
  require(fused == 1 || !gather_output, parallel.axis->where("ColumnParallelLinear"),
          "gather_output is not supported with fused matrices, because the gathered parts of several ranks would be "
          "mixed. Leave out one of them.");
  reset();
}

void ColumnParallelLinearImpl::reset() {
  require_equal_parts(options.out_features() / fused, *parallel.axis, "ColumnParallelLinear", "out_features");
  const torch::nn::LinearImpl whole(options);
  weight = register_parameter("weight", own_part(whole.weight, *cut_of("weight")));
  if (!options.bias()) return;
  bias = register_parameter("bias", own_part(whole.bias, *cut_of("bias")));
}

std::optional<TensorCut> ColumnParallelLinearImpl::cut_of(const std::string& /*parameter*/) const {
  return TensorCut{parallel.axis, 0, fused};
}

torch::Tensor ColumnParallelLinearImpl::forward(const torch::Tensor& input) {
  const auto own = torch::nn::functional::linear(spread(input, parallel), weight, bias);
  return gather_output ? functional::gather_from_ranks(own, -1, parallel.axis) : own;
}

void ColumnParallelLinearImpl::pretty_print(std::ostream& stream) const {
  print_linear(stream, "fsdp::ColumnParallelLinear", options, parallel.axis->world_size());
}

RowParallelLinearImpl::RowParallelLinearImpl(const torch::nn::LinearOptions& whole,
                                             TensorParallelOptions options_of_axis)
    : options(whole), parallel(over_an_axis(std::move(options_of_axis))) {
  reset();
}

void RowParallelLinearImpl::reset() {
  require_equal_parts(options.in_features(), *parallel.axis, "RowParallelLinear", "in_features");
  const torch::nn::LinearImpl whole(options);
  weight = register_parameter("weight", own_part(whole.weight, *cut_of("weight")));
  if (!options.bias()) return;
  bias = register_parameter("bias", whole.bias.detach().clone());
}

torch::Tensor RowParallelLinearImpl::forward(const torch::Tensor& input) {
  const int64_t features = options.in_features() / parallel.axis->world_size();
  require(input.dim() > 0 && input.size(-1) == features, parallel.axis->where("RowParallelLinear"),
          "expected this rank's part of the input, ", features, " features, found sizes ", input.sizes(),
          ". Pass the output of a ColumnParallelLinear without gather_output, or of functional::scatter_to_ranks.");
  const auto sum = summed(torch::nn::functional::linear(input, weight), parallel);
  if (!bias.defined()) return sum;
  return sum + (parallel.sequence_dim ? functional::copy_to_ranks(bias, parallel.axis) : bias);
}

std::optional<TensorCut> RowParallelLinearImpl::cut_of(const std::string& parameter) const {
  return parameter == "weight" ? std::optional<TensorCut>({parallel.axis, 1}) : std::nullopt;
}

void RowParallelLinearImpl::pretty_print(std::ostream& stream) const {
  print_linear(stream, "fsdp::RowParallelLinear", options, parallel.axis->world_size());
}

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(const torch::nn::EmbeddingOptions& whole,
                                                       TensorParallelOptions options_of_axis)
    : options(whole), parallel(over_an_axis(std::move(options_of_axis))) {
  require(!options.max_norm() && !options.scale_grad_by_freq() && !options.sparse() && !options._weight().defined(),
          parallel.axis->where("VocabParallelEmbedding"),
          "max_norm, scale_grad_by_freq, sparse and _weight are not supported, and at least one of them is set. Leave "
          "them out.");
  reset();
}

void VocabParallelEmbeddingImpl::reset() {
  require_equal_parts(options.num_embeddings(), *parallel.axis, "VocabParallelEmbedding", "num_embeddings");
  const torch::nn::EmbeddingImpl whole(options);
  weight = register_parameter("weight", own_part(whole.weight, *cut_of("weight")));
}

std::optional<TensorCut> VocabParallelEmbeddingImpl::cut_of(const std::string& /*parameter*/) const {
  return TensorCut{parallel.axis, 0};
}

torch::Tensor VocabParallelEmbeddingImpl::forward(const torch::Tensor& indices) {
  const int64_t count = options.num_embeddings() / parallel.axis->world_size();
  require_in_range(indices, options.num_embeddings(), parallel.axis->where("VocabParallelEmbedding"), "indices");
  const auto own = indices - parallel.axis->rank() * count;
  const auto elsewhere = own.lt(0).logical_or(own.ge(count));
  auto known = torch::nn::functional::EmbeddingFuncOptions();
  if (options.padding_idx()) {
    const int64_t padding = *options.padding_idx() - parallel.axis->rank() * count;
    if (0 <= padding && padding < count) known.padding_idx(padding);
  }
  const auto rows = torch::nn::functional::embedding(own.masked_fill(elsewhere, 0), weight, known);
  return summed(rows.masked_fill(elsewhere.unsqueeze(-1), 0), parallel);
}

void VocabParallelEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "fsdp::VocabParallelEmbedding(num_embeddings=" << options.num_embeddings()
         << ", embedding_dim=" << options.embedding_dim() << ", parts=" << parallel.axis->world_size() << ')';
}

at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                        const std::shared_ptr<ProcessGroup>& axis, int64_t ignore_index) {
  const auto& ranks = axis ? axis : default_process_group();
  require(logits.defined() && targets.defined() && logits.dim() == 2 && targets.dim() == 1 &&
              logits.size(0) == targets.size(0) && targets.scalar_type() == at::kLong,
          ranks->where("vocab_parallel_cross_entropy"),
          "expected logits of sizes [rows, classes / ranks] and targets of sizes [rows] and dtype Long, found ",
          form_of(logits), " and ", form_of(targets), '.');
  const int64_t classes = logits.size(1);
  const auto own = targets - ranks->rank() * classes;
  const auto is_here = own.ge(0).logical_and(own.lt(classes)), counts = targets.ne(ignore_index);
  require_in_range(targets.masked_fill(counts.logical_not(), 0), classes * ranks->world_size(),
                   ranks->where("vocab_parallel_cross_entropy"), "targets");
  const auto largest = all_reduce(std::get<0>(logits.detach().max(1)), ReduceOp::kMax, ranks);
  const auto shifted = logits.to(at::toOpMathType(logits.scalar_type())) - largest.unsqueeze(1);
  const auto sums = functional::reduce_from_ranks(shifted.exp().sum(1), ranks);
  const auto found = shifted.gather(1, own.masked_fill(is_here.logical_not(), 0).unsqueeze(1)).squeeze(1);
  const auto wanted = functional::reduce_from_ranks(found.masked_fill(is_here.logical_not(), 0), ranks);
  return (sums.log() - wanted).masked_fill(counts.logical_not(), 0).sum() / counts.sum().clamp_min(1);
}

}  // namespace fsdp
