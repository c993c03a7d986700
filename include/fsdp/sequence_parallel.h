#pragma once
/// \file
/// Sequence parallelism: models whose sequences are split over ranks.

#include <ATen/core/Tensor.h>
#include <fsdp/process_group.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup communication
/// \{

/// Method with which ranks compute attention over whole sequences; docs/sequence.md compares traffic and memory.
enum class SequenceMethod : uint8_t {
  /// Ranks pass keys and values around a ring. Each rank has one chunk from the beginning of the sequence and one from
  /// its end, so all ranks have the same work with a causal mask.
  kHeadTail,
  /// Ranks pass keys and values around a ring, and each rank has one contiguous chunk. Use this method for attention
  /// that is not causal.
  kRing,
  /// Every rank gathers all keys and values.
  kGather,
  /// Ranks exchange data so that each rank, instead of all heads of some tokens, has all tokens of some heads
  /// (DeepSpeed-Ulysses). The number of ranks must divide the number of heads of queries, and of keys and values.
  kHeads,
  /// Ranks pass keys, then values, around a ring, and every rank holds its rows of the score matrix (Li et al.,
  /// Sequence Parallelism, 2021). This method is for comparison with kRing, which stores no scores.
  kRingSelfAttention,
};

/// Scope in which each rank of an axis has some tokens of every sequence, and calls of
/// `torch::scaled_dot_product_attention` in an unmodified model attend to the whole sequences. Everything else in the
/// model must treat tokens independently: linear layers, norms over features, activations, embeddings.
/// `fsdp::positions` gives the tokens' positions.
///
///     auto mesh = fsdp::init_device_mesh({2, 4}, {"data", "sequence"});
///     fsdp::SequenceParallel sequence(mesh.process_group("sequence"));
///     auto tokens = sequence.shard(text.narrow(1, 0, length), 1);
///     auto labels = sequence.shard(text.narrow(1, 1, length), 1, -100);  // shift labels before you shard them
///     auto losses = cross_entropy_sum(model(tokens), labels);            // labels of -100 do not count
///     fsdp::sequence_mean(losses, labels.ne(-100).sum()).backward();
///
/// The ranks of the axis must have the same batch. Opening a scope is not collective. Attention and `unshard` are
/// collective in forward and in backward; they throw Mismatch if sizes differ between ranks. Each rank's gradients are
/// those of the sum of all ranks' losses. Backward does not need an open scope, and activation checkpointing restores
/// the scope when it recomputes. Attention has no second derivatives. With one rank a scope has no effect.
///
/// Attention supports queries, keys and values of sizes [batch, heads, tokens, size] or [batch, tokens, size], all of
/// them split over the ranks; fp64, fp32, bf16 and fp16 (partial results of bf16 and fp16 are summed in fp32);
/// `enable_gqa`, without copies of keys and values; `scale`; is_causal, or a boolean or additive mask, which every rank
/// passes for the whole sequences; queries and keys of different lengths, without is_causal; and autocast. A query
/// whose keys are all masked gets zeros. On the CPU attention uses LibTorch's flash attention. On a CUDA device it uses
/// matrix products that hold the scores of one block; this code has not run on a GPU yet.
///
/// Attention throws UsageError, before anything is communicated, for dropout, for a mask that is not whole or requires
/// a gradient, and for operands whose sizes do not match.
///
/// A scope belongs to one thread. Destroy scopes in the reverse order of their construction; the innermost scope
/// applies.
class [[nodiscard]] SequenceParallel {
 public:
  /// Opens a scope that splits sequences over the ranks of `group` (if null, the default process group).
  explicit SequenceParallel(std::shared_ptr<ProcessGroup> group = nullptr,
                            SequenceMethod method = SequenceMethod::kHeadTail);
  /// Opens a scope that splits sequences over two axes of a mesh, `ring` and `heads`; neither may be null. The ranks of
  /// `heads` exchange heads for tokens as in kHeads, so their number must divide the numbers of heads of queries and of
  /// keys. `method` runs over the ranks of `ring` and must not be kHeads. Use this constructor if there are more ranks
  /// than heads, or to keep the exchange of many small messages inside a host. Shard parameters over both axes:
  /// `mesh[{"ring", "heads"}].flatten("shard")`.
  ///
  ///     auto mesh = fsdp::init_device_mesh({2, 4}, {"ring", "heads"});
  ///     fsdp::SequenceParallel sequence(mesh.process_group("ring"), mesh.process_group("heads"));
  SequenceParallel(std::shared_ptr<ProcessGroup> ring, std::shared_ptr<ProcessGroup> heads,
                   SequenceMethod method = SequenceMethod::kHeadTail);
  ~SequenceParallel();
  SequenceParallel(const SequenceParallel&) = delete;
  SequenceParallel& operator=(const SequenceParallel&) = delete;

  /// Returns this rank's tokens, along `dim`, of a tensor that every rank has whole. All ranks get equally many tokens;
  /// if the number of ranks does not divide the length, the sequence is filled with `padding`, which attention ignores.
  /// Autograd records the call: the gradient of `whole` has values for this rank's tokens and zeros elsewhere. Shift
  /// labels before you call this function. Not collective.
  ///
  /// Throws UsageError if there are fewer tokens than ranks, or if sequences of two lengths in one scope would have
  /// parts of the same length.
  [[nodiscard]] at::Tensor shard(const at::Tensor& whole, int64_t dim, double padding = 0) const;

  /// Returns the whole tensor on every rank, in the order of the sequence and without padding. Autograd records the
  /// call. Collective.
  [[nodiscard]] at::Tensor unshard(const at::Tensor& part, int64_t dim) const;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

/// Returns the positions of this rank's `length` tokens in the whole sequence, in int64, for position embeddings and
/// rotary embeddings. Outside a scope they are 0 to length - 1; in a pipeline stage they are the positions of the slice
/// of tokens that the stage is computing. A model therefore needs no special code. Padding has the position of the last
/// token. Not collective.
///
///     x = token_embedding(x) + position_embedding(fsdp::positions(x.size(1), x.device()));
[[nodiscard]] at::Tensor positions(int64_t length, at::Device device = at::kCPU);

/// Returns the mean loss over the tokens of all ranks of the scope, on every rank. `sum` is the sum of this rank's
/// losses, and `count` the number of this rank's tokens that count; the ranks' counts may differ, so the average of the
/// ranks' means would be wrong. Autograd records the call in such a way that the average of the ranks' gradients, which
/// fully_shard computes, is the gradient of this mean. Outside a scope the function returns sum / count. Collective.
[[nodiscard]] at::Tensor sequence_mean(const at::Tensor& sum, const at::Tensor& count);

/// Tests whether a model works with split sequences: computes `forward(input)` once for whole sequences and once for
/// sequences that are split over the ranks of the scope, and compares the results. `dim` is the dim of tokens in input
/// and result. The model must be in evaluation mode, because dropout would differ. Collective.
///
/// Throws UsageError, before it computes anything, for a module that mixes tokens without scaled_dot_product_attention
/// (torch::nn::MultiheadAttention, Transformer and its layers, RNN, LSTM, GRU, and Conv1d with a kernel larger than 1);
/// and if the results differ. The message then names the model's first operator with a different result and the module
/// of the parameter that was read last before this operator.
///
///     model->eval();
///     fsdp::check_sequence_split(sequence, *gpt, [&](const torch::Tensor& text) { return model(text); }, tokens);
void check_sequence_split(const SequenceParallel& sequence, const torch::nn::Module& model,
                          const std::function<at::Tensor(const at::Tensor&)>& forward, const at::Tensor& input,
                          int64_t dim = 1);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
