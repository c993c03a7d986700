#pragma once
/// \file
/// Layers of which each rank of an axis has a part.

#include <fsdp/process_group.h>
#include <fsdp/tensor_cut.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/embedding.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// What the layers of a tensor axis have in common.
struct TensorParallelOptions {
  /// The ranks that have a part each; of a mesh `mesh.process_group("tensor")`. Null: the default process group.
  std::shared_ptr<ProcessGroup> axis = nullptr;
  /// The dim, as a rule that of the tokens, along which activations outside of the parts are cut, so that each rank has
  /// some of them; unset: every rank has all. A column-parallel layer gathers them then, and a row-parallel one
  /// scatters its sums (V. Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022,
  /// section 4.2.2). A parameter that every rank has, such as a norm's, gets the gradient of this rank's tokens alone
  /// there: read it through functional::copy_to_ranks, which sums the gradients.
  std::optional<int64_t> sequence_dim = std::nullopt;
};

/// The linear layer of which each rank has some of the columns of outputs (M. Shoeybi et al., Megatron-LM, 2019,
/// section 3). Its `weight` has the sizes [out_features / ranks, in_features], its `bias` [out_features / ranks]: those
/// rows of the whole layer, with the values that torch::nn::Linear of these options would have under the same seed.
///
/// Every rank of the axis gets the same input, [..., in_features], and computes the same loss. The result is this
/// rank's part, [..., out_features / ranks], which a RowParallelLinear takes, or the whole with `gather_output`.
/// Where several matrices are `fused` in one, each rank has its part of each, such as the queries, keys and values of
/// its heads.
/// Forward and backward are collective over the axis. Shard such layers over the ranks of another axis. Throws
/// UsageError where the ranks do not divide the features.
///
///     auto up = register_module("up", fsdp::ColumnParallelLinear(torch::nn::LinearOptions(768, 3072), options));
///     auto down = register_module("down", fsdp::RowParallelLinear(torch::nn::LinearOptions(3072, 768), options));
///     x = x + down(torch::gelu(up(x)));
class ColumnParallelLinearImpl : public torch::nn::Cloneable<ColumnParallelLinearImpl>, public TensorParallelLayer {
 public:
  /// A part of the layer that `whole` describes.
  explicit ColumnParallelLinearImpl(const torch::nn::LinearOptions& whole, TensorParallelOptions parallel = {},
                                    bool gather_output = false, int64_t fused = 1);
  /// See the class.
  torch::Tensor forward(const torch::Tensor& input);
  /// Gives the parameters their initial values again.
  void reset() override;
  /// Prints the sizes of the whole layer and the number of parts.
  void pretty_print(std::ostream& stream) const override;
  /// See TensorParallelLayer.
  std::optional<TensorCut> cut_of(const std::string& parameter) const override;

  torch::nn::LinearOptions options;  ///< of the whole layer
  TensorParallelOptions parallel;    ///< the axis
  bool gather_output;                ///< whether forward gives the whole output
  int64_t fused;                     ///< matrices that lie one behind another in the whole weight
  torch::Tensor weight;              ///< this rank's rows
  torch::Tensor bias;                ///< this rank's elements; undefined without a bias
};
/// The holder of ColumnParallelLinearImpl.
TORCH_MODULE(ColumnParallelLinear);

/// The linear layer of which each rank has some of the rows of inputs. Its `weight` has the sizes [out_features,
/// in_features / ranks], its `bias` [out_features] is the same on every rank; the values are those of torch::nn::Linear
/// under the same seed. It takes this rank's part of the input, [..., in_features / ranks], and gives the sum over the
/// ranks and the bias, [..., out_features]. Otherwise as ColumnParallelLinearImpl.
class RowParallelLinearImpl : public torch::nn::Cloneable<RowParallelLinearImpl>, public TensorParallelLayer {
 public:
  /// A part of the layer that `whole` describes.
  explicit RowParallelLinearImpl(const torch::nn::LinearOptions& whole, TensorParallelOptions parallel = {});
  /// See the class.
  torch::Tensor forward(const torch::Tensor& input);
  /// Gives the parameters their initial values again.
  void reset() override;
  /// Prints the sizes of the whole layer and the number of parts.
  void pretty_print(std::ostream& stream) const override;
  /// See TensorParallelLayer.
  std::optional<TensorCut> cut_of(const std::string& parameter) const override;

  torch::nn::LinearOptions options;  ///< of the whole layer
  TensorParallelOptions parallel;    ///< the axis
  torch::Tensor weight;              ///< this rank's columns
  torch::Tensor bias;                ///< undefined without a bias
};
/// The holder of RowParallelLinearImpl.
TORCH_MODULE(RowParallelLinear);

/// The embedding of which each rank has some of the rows: rank r those of the indices [r * n, (r + 1) * n), where n is
/// num_embeddings / ranks. Its `weight` has the sizes [n, embedding_dim] and the values of torch::nn::Embedding under
/// the same seed. Every rank of the axis gets the same indices, int64, and the result is the whole one. Of the options
/// it takes num_embeddings, embedding_dim and padding_idx; others are a UsageError. Otherwise as
/// ColumnParallelLinearImpl.
class VocabParallelEmbeddingImpl : public torch::nn::Cloneable<VocabParallelEmbeddingImpl>,
                                   public TensorParallelLayer {
 public:
  /// A part of the embedding that `whole` describes.
  explicit VocabParallelEmbeddingImpl(const torch::nn::EmbeddingOptions& whole, TensorParallelOptions parallel = {});
  /// See the class.
  torch::Tensor forward(const torch::Tensor& indices);
  /// Gives the weight its initial values again.
  void reset() override;
  /// Prints the sizes of the whole embedding and the number of parts.
  void pretty_print(std::ostream& stream) const override;
  /// See TensorParallelLayer.
  std::optional<TensorCut> cut_of(const std::string& parameter) const override;

  torch::nn::EmbeddingOptions options;  ///< of the whole embedding
  TensorParallelOptions parallel;       ///< the axis
  torch::Tensor weight;                 ///< this rank's rows
};
/// The holder of VocabParallelEmbeddingImpl.
TORCH_MODULE(VocabParallelEmbedding);

/// The mean cross entropy of logits of which each rank has some of the classes, [rows, classes / ranks], as a
/// ColumnParallelLinear without `gather_output` gives them, against `targets`, [rows] of int64, the same on every rank.
/// Rows whose target is `ignore_index` do not count, and where none does the loss is 0. No rank holds the logits of
/// another one: three numbers for each row are exchanged. Collective over `axis` (null: the default process group), and
/// the result is the same on every rank. Throws UsageError for other sizes, and on the CPU for targets that are no
/// classes.
///
///     auto loss = fsdp::vocab_parallel_cross_entropy(head(x).flatten(0, 1), targets.flatten(), axis);
[[nodiscard]] at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                                      const std::shared_ptr<ProcessGroup>& axis = nullptr,
                                                      int64_t ignore_index = -100);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
