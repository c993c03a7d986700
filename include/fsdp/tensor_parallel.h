#pragma once
/// \file
/// Tensor-parallel layers.

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

/// Options of tensor-parallel layers. All layers of an axis must have the same options.
struct TensorParallelOptions {
  /// Ranks over which layers are split, for example `mesh.process_group("tensor")`; if null, the default process group.
  std::shared_ptr<ProcessGroup> axis = nullptr;
  /// Dim, usually that of tokens, along which activations outside split layers are divided between the ranks; if unset,
  /// every rank has whole activations. With this option a column-parallel layer gathers its input, and a row-parallel
  /// layer scatters its sum (V. Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models,
  /// 2022, section 4.2.2). A parameter that is not split, such as a norm's, then gets gradients of this rank's tokens
  /// only; read such a parameter through functional::copy_to_ranks, which sums the gradients.
  std::optional<int64_t> sequence_dim = std::nullopt;
};

/// Linear layer whose output features are split over the ranks (M. Shoeybi et al., Megatron-LM, 2019, section 3).
/// `weight` has sizes [out_features / ranks, in_features] and `bias` [out_features / ranks]. Their initial values are
/// this rank's rows of a torch::nn::Linear with the same options and seed.
///
/// Every rank of the axis gets the same input, [..., in_features], and computes the same loss. The result is this
/// rank's part, [..., out_features / ranks], which a RowParallelLinear takes as its input. With `gather_output` the
/// result is whole. If `weight` consists of several `fused` matrices, each matrix is split separately, so that a rank
/// has, for example, the queries, keys and values of its heads. Forward and backward are collective over the axis.
/// fully_shard must shard such layers over the ranks of another axis. The constructor throws UsageError if the number
/// of ranks does not divide the features, and for `fused` > 1 with `gather_output`.
///
///     auto up = register_module("up", fsdp::ColumnParallelLinear(torch::nn::LinearOptions(768, 3072), options));
///     auto down = register_module("down", fsdp::RowParallelLinear(torch::nn::LinearOptions(3072, 768), options));
///     x = x + down(torch::gelu(up(x)));
class ColumnParallelLinearImpl : public torch::nn::Cloneable<ColumnParallelLinearImpl>, public TensorParallelLayer {
 public:
  /// Makes this rank's part of the layer that `whole` describes.
  explicit ColumnParallelLinearImpl(const torch::nn::LinearOptions& whole, TensorParallelOptions parallel = {},
                                    bool gather_output = false, int64_t fused = 1);
  /// Returns this rank's part of the output, or the whole output if `gather_output` is true; see the class.
  torch::Tensor forward(const torch::Tensor& input);
  /// Initialises the parameters again.
  void reset() override;
  /// Prints the sizes of the whole layer and the number of parts.
  void pretty_print(std::ostream& stream) const override;
  /// Returns how a parameter is split; see TensorParallelLayer.
  std::optional<TensorCut> cut_of(const std::string& parameter) const override;

  torch::nn::LinearOptions options;  ///< options of the whole layer
  TensorParallelOptions parallel;    ///< options of the tensor-parallel layer
  bool gather_output;                ///< true if forward returns the whole output
  int64_t fused;                     ///< number of matrices stacked in the whole weight
  torch::Tensor weight;              ///< this rank's rows of the whole weight
  torch::Tensor bias;                ///< this rank's elements of the bias; undefined without a bias
};
/// Holder of ColumnParallelLinearImpl.
TORCH_MODULE(ColumnParallelLinear);

/// Linear layer whose input features are split over the ranks. `weight` has sizes [out_features, in_features / ranks];
/// `bias`, [out_features], is the same on every rank. Initial values are those of torch::nn::Linear with the same seed.
/// The input is this rank's part, [..., in_features / ranks]; the result, [..., out_features], is the sum over the
/// ranks plus the bias. In all other respects the class is like ColumnParallelLinearImpl.
class RowParallelLinearImpl : public torch::nn::Cloneable<RowParallelLinearImpl>, public TensorParallelLayer {
 public:
  /// Makes this rank's part of the layer that `whole` describes.
  explicit RowParallelLinearImpl(const torch::nn::LinearOptions& whole, TensorParallelOptions parallel = {});
  /// Returns the sum of the ranks' products plus the bias; see the class.
  torch::Tensor forward(const torch::Tensor& input);
  /// Initialises the parameters again.
  void reset() override;
  /// Prints the sizes of the whole layer and the number of parts.
  void pretty_print(std::ostream& stream) const override;
  /// Returns how a parameter is split; see TensorParallelLayer.
  std::optional<TensorCut> cut_of(const std::string& parameter) const override;

  torch::nn::LinearOptions options;  ///< options of the whole layer
  TensorParallelOptions parallel;    ///< options of the tensor-parallel layer
  torch::Tensor weight;              ///< this rank's columns of the whole weight
  torch::Tensor bias;                ///< whole bias; undefined without a bias
};
/// Holder of RowParallelLinearImpl.
TORCH_MODULE(RowParallelLinear);

/// Embedding whose rows are split over the ranks: rank r has the indices [r * n, (r + 1) * n), where n is
/// num_embeddings / ranks. `weight` has sizes [n, embedding_dim] and the initial values of torch::nn::Embedding with
/// the same seed. Every rank of the axis passes the same indices, in int64, and gets the whole result. Supported
/// options are num_embeddings, embedding_dim and padding_idx; the constructor throws UsageError for others. In all
/// other respects the class is like ColumnParallelLinearImpl.
class VocabParallelEmbeddingImpl : public torch::nn::Cloneable<VocabParallelEmbeddingImpl>,
                                   public TensorParallelLayer {
 public:
  /// Makes this rank's part of the embedding that `whole` describes.
  explicit VocabParallelEmbeddingImpl(const torch::nn::EmbeddingOptions& whole, TensorParallelOptions parallel = {});
  /// Returns the embeddings of `indices`; see the class.
  torch::Tensor forward(const torch::Tensor& indices);
  /// Initialises the weight again.
  void reset() override;
  /// Prints the sizes of the whole embedding and the number of parts.
  void pretty_print(std::ostream& stream) const override;
  /// Returns how a parameter is split; see TensorParallelLayer.
  std::optional<TensorCut> cut_of(const std::string& parameter) const override;

  torch::nn::EmbeddingOptions options;  ///< options of the whole embedding
  TensorParallelOptions parallel;       ///< options of the tensor-parallel layer
  torch::Tensor weight;                 ///< this rank's rows of the whole weight
};
/// Holder of VocabParallelEmbeddingImpl.
TORCH_MODULE(VocabParallelEmbedding);

/// Returns the mean cross entropy of logits whose classes are split over the ranks. `logits` has sizes [rows, classes /
/// ranks], as a ColumnParallelLinear without `gather_output` returns them. `targets` has sizes [rows] in int64 and is
/// the same on every rank. Rows whose target is `ignore_index` are ignored; if all rows are ignored, the loss is 0.
/// Ranks exchange three numbers per row instead of logits. Collective over `axis` (if null, the default process group);
/// the result is the same on every rank. Throws UsageError for other sizes and, on the CPU, for targets that are not
/// numbers of classes.
///
///     auto loss = fsdp::vocab_parallel_cross_entropy(head(x).flatten(0, 1), targets.flatten(), axis);
[[nodiscard]] at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                                      const std::shared_ptr<ProcessGroup>& axis = nullptr,
                                                      int64_t ignore_index = -100);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
