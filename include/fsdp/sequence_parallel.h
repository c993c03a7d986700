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

/// How attention over ranks is computed; docs/sequence.md compares traffic and memory.
enum class SequenceMethod : uint8_t {
  /// Keys and values are passed around a ring of ranks. Each rank has one chunk from the beginning of the sequence and
  /// one from its end, so a causal mask gives all ranks the same work.
  kHeadTail,
  /// Keys and values are passed around a ring, and each rank has one contiguous chunk. For attention that is not
  /// causal.
  kRing,
  /// Every rank gathers all keys and values.
  kGather,
  /// Ranks exchange all heads of some tokens for all tokens of some heads (DeepSpeed-Ulysses). The number of ranks must
  /// divide the number of heads of queries, and of keys and values.
  kHeads,
  /// Keys, then values, are passed around a ring, and every rank holds its rows of the score matrix (Li et al.,
  /// Sequence Parallelism, 2021). For comparison with kRing, which stores no scores.
  kRingSelfAttention,
};

/// A scope in which each rank of an axis has some tokens of every sequence, and `torch::scaled_dot_product_attention`
/// in any unmodified model attends to the whole sequences. Everything else in the model must treat tokens
/// independently: linear layers, norms over features, activations, embeddings. `fsdp::positions` gives the tokens'
/// positions.
///
///     auto mesh = fsdp::init_device_mesh({2, 4}, {"data", "sequence"});
///     fsdp::SequenceParallel sequence(mesh.process_group("sequence"));
///     auto tokens = sequence.shard(text.narrow(1, 0, length), 1);
///     auto labels = sequence.shard(text.narrow(1, 1, length), 1, -100);  // shifted before they are dealt
///     auto losses = cross_entropy_sum(model(tokens), labels);            // labels of -100 count nothing
///     fsdp::sequence_mean(losses, labels.ne(-100).sum()).backward();
///
/// The ranks of the axis must have the same batch. Opening a scope is not collective. Attention and `unshard` are, in
/// forward and in backward, with the same sizes on every rank; otherwise Mismatch. Each rank's gradients are those of
/// the sum of all ranks' losses. Backward does not need an open scope, and activation checkpointing restores the scope
/// when it recomputes. Attention has no second derivatives. With one rank a scope has no effect.
///
/// Supported attention: queries, keys and values of sizes [batch, heads, tokens, size] or [batch, tokens, size], all
/// split over the ranks; fp64, fp32, bf16 and fp16 (partial results of the latter two are summed in fp32);
/// `enable_gqa`, without copies of keys and values; `scale`; is_causal, or a boolean or additive mask, which every rank
/// passes for the whole sequences; queries and keys of different lengths, without is_causal; autocast. A query whose
/// keys are all masked gets zeros. On the CPU attention uses LibTorch's flash attention, on a CUDA device matrix
/// products that hold the scores of one block (not yet run there).
///
/// Attention throws UsageError, before anything is communicated, for dropout, for a mask that is not whole or requires
/// a gradient, and for operands whose sizes do not match.
///
/// A scope belongs to one thread. Destroy scopes in the reverse order of their construction; the innermost one applies.
class [[nodiscard]] SequenceParallel {
 public:
  /// Splits sequences over the ranks of `group` (null: the default process group).
  explicit SequenceParallel(std::shared_ptr<ProcessGroup> group = nullptr,
                            SequenceMethod method = SequenceMethod::kHeadTail);
  /// Splits sequences over two axes of a mesh, `ring` and `heads`, neither of which may be null. The ranks of `heads`
  /// exchange heads for tokens, so their number must divide the heads of queries and of keys; `method`, which must not
  /// be kHeads, runs over the ranks of `ring`. Use it if there are more ranks than heads, or to keep the exchange of
  /// many small messages inside a host. Shard parameters over both axes: `mesh[{"ring", "heads"}].flatten("shard")`.
  ///
  ///     auto mesh = fsdp::init_device_mesh({2, 4}, {"ring", "heads"});
  ///     fsdp::SequenceParallel sequence(mesh.process_group("ring"), mesh.process_group("heads"));
  SequenceParallel(std::shared_ptr<ProcessGroup> ring, std::shared_ptr<ProcessGroup> heads,
                   SequenceMethod method = SequenceMethod::kHeadTail);
  ~SequenceParallel();
  SequenceParallel(const SequenceParallel&) = delete;
  SequenceParallel& operator=(const SequenceParallel&) = delete;

  /// Returns this rank's tokens, along `dim`, of a tensor that every rank has whole. All ranks get equally many;
  /// `padding` fills a sequence whose length does not divide, and attention ignores it. Autograd records it: the
  /// gradient of `whole` has values for this rank's tokens and zeros elsewhere. Shift labels before you call it. Not
  /// collective.
  ///
  /// Throws UsageError if there are fewer tokens than ranks, or if one scope would have two sequence lengths whose
  /// parts are equally long.
  [[nodiscard]] at::Tensor shard(const at::Tensor& whole, int64_t dim, double padding = 0) const;

  /// Returns the whole tensor on every rank, in the order of the sequence and without padding. Autograd records it.
  /// Collective.
  [[nodiscard]] at::Tensor unshard(const at::Tensor& part, int64_t dim) const;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

/// The positions in the whole sequence of this rank's `length` tokens, in int64, for position embeddings and rotary
/// embeddings. Outside a scope they are 0 to length - 1, or the positions of the tokens that a pipeline stage computes
/// at the moment, so a model needs no special code. Padding has the position of the last token. Not collective.
///
///     x = token_embedding(x) + position_embedding(fsdp::positions(x.size(1), x.device()));
[[nodiscard]] at::Tensor positions(int64_t length, at::Device device = at::kCPU);

/// The mean over the tokens of all ranks of the scope, on every rank. `sum` is the sum of this rank's losses, `count`
/// the number of its tokens that count; ranks have different counts, so averaging their means would be wrong. Autograd
/// records it: fully_shard averages the ranks' gradients, which gives the gradient of this mean. Outside a scope it
/// returns sum / count. Collective.
[[nodiscard]] at::Tensor sequence_mean(const at::Tensor& sum, const at::Tensor& count);

/// Tests whether a model may be split along its sequences: computes `forward(input)` once whole and once split over the
/// ranks of the scope, and compares the results. `dim` is the dim of tokens in input and result. The model must be in
/// evaluation mode, since dropout would differ. Collective.
///
/// Throws UsageError, before it computes anything, for a module that mixes tokens without scaled_dot_product_attention
/// (torch::nn::MultiheadAttention, Transformer and its layers, RNN, LSTM, GRU, and Conv1d with a kernel larger than 1);
/// and if the results differ. The message then names the model's first operator with a different result and the module
/// whose parameters were read last before it.
///
///     model->eval();
///     fsdp::check_sequence_split(sequence, *gpt, [&](const torch::Tensor& text) { return model(text); }, tokens);
void check_sequence_split(const SequenceParallel& sequence, const torch::nn::Module& model,
                          const std::function<at::Tensor(const at::Tensor&)>& forward, const at::Tensor& input,
                          int64_t dim = 1);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
