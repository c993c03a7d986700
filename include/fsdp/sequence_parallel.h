#pragma once
/// \file
/// Models split along the tokens of their sequences.

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

/// How attention over ranks is carried out; docs/sequence.md says what each method moves and holds. N are the ranks of
/// the axis.
enum class SequenceMethod : uint8_t {
  /// Keys and values go round the ranks, and each rank has a chunk from the head of the sequence and one from its tail,
  /// so that a causal mask leaves all of them as much to compute.
  kHeadTail,
  /// Keys and values go round the ranks, each of which has one chunk of the sequence: where attention is not causal.
  kRing,
  /// Every rank gathers all keys and values.
  kGather,
  /// Ranks exchange all heads of some tokens for all tokens of some heads (DeepSpeed-Ulysses). The ranks must divide
  /// the heads of queries, and those of keys and values.
  kHeads,
  /// Keys go round, then values, and every rank holds its rows of scores (Li et al., Sequence Parallelism, 2021): for
  /// comparison with kRing, which holds no scores.
  kRingSelfAttention,
};

/// A stretch of a program in which each rank of an axis has some tokens of every sequence, and in which
/// `torch::scaled_dot_product_attention` of any model, which nobody edits, is that of the whole sequences. What else a
/// model does must treat tokens one by one: linear layers, norms over features, activations, embeddings. Tokens get
/// their positions from `fsdp::positions`.
///
///     auto mesh = fsdp::init_device_mesh({2, 4}, {"data", "sequence"});
///     fsdp::SequenceParallel sequence(mesh.process_group("sequence"));
///     auto tokens = sequence.shard(text.narrow(1, 0, length), 1);
///     auto labels = sequence.shard(text.narrow(1, 1, length), 1, -100);  // shifted before they are dealt
///     auto losses = cross_entropy_sum(model(tokens), labels);            // labels of -100 count nothing
///     fsdp::sequence_mean(losses, labels.ne(-100).sum()).backward();
///
/// The ranks of the axis must have the same batch. Opening a scope is not collective; attention and `unshard` in it
/// are, in forward and in backward, with the same sizes on every rank: else Mismatch. Each rank's gradients are those
/// of the sum of all ranks' losses. Backward needs no open scope, and activation checkpointing enters the scope again
/// when it computes a part once more. There are no second derivatives through attention. With one rank all is as
/// without a scope.
///
/// Attention: queries, keys and values of sizes [batch, heads, tokens, size], or [batch, tokens, size], all of them
/// dealt; fp64, fp32, bf16 and fp16, of which results of parts are added up in fp32; `enable_gqa`, for which keys and
/// values travel as they are; `scale`; causal, or with a boolean or additive mask, which every rank gives for the whole
/// sequences; queries and keys of different lengths, without is_causal. Autocast holds. A query that a mask hides from
/// all keys gets zeros. On the CPU it is computed by LibTorch's flash attention, and on a CUDA device by matrix
/// products that hold the scores of one block (not yet run there).
///
/// Attention throws UsageError before anything is communicated for dropout in it, for masks that are not whole or
/// require gradients, and for operands that do not fit each other.
///
/// The scope belongs to one thread and is closed there, last in, first out; the innermost one counts.
class [[nodiscard]] SequenceParallel {
 public:
  /// Over the ranks of `group` (null: the default one).
  explicit SequenceParallel(std::shared_ptr<ProcessGroup> group = nullptr,
                            SequenceMethod method = SequenceMethod::kHeadTail);
  /// Over two axes of a mesh, `ring` and `heads`, which are not null: each rank has some tokens of every sequence; the
  /// ranks of `heads`, which must divide the heads of queries and keys, exchange heads for tokens, and `method`, which
  /// is not kHeads, goes over those of `ring`. Where there are more ranks than heads, and to keep exchanges of many
  /// small messages inside a host. Parameters are sharded over both axes: `mesh[{"ring", "heads"}].flatten("shard")`.
  ///
  ///     auto mesh = fsdp::init_device_mesh({2, 4}, {"ring", "heads"});
  ///     fsdp::SequenceParallel sequence(mesh.process_group("ring"), mesh.process_group("heads"));
  SequenceParallel(std::shared_ptr<ProcessGroup> ring, std::shared_ptr<ProcessGroup> heads,
                   SequenceMethod method = SequenceMethod::kHeadTail);
  ~SequenceParallel();
  SequenceParallel(const SequenceParallel&) = delete;
  SequenceParallel& operator=(const SequenceParallel&) = delete;

  /// This rank's tokens of a tensor that every rank has whole, along `dim`. All ranks get as many: `padding` stands
  /// behind the end of a sequence that does not divide, and attention leaves it out. Autograd goes through it: the
  /// gradient of `whole` has this rank's tokens, and zeros elsewhere. Labels are shifted before. Not collective.
  ///
  /// Throws UsageError if there are fewer tokens than ranks, and for two lengths in one scope whose parts are equally
  /// long.
  [[nodiscard]] at::Tensor shard(const at::Tensor& whole, int64_t dim, double padding = 0) const;

  /// The whole tensor of which the ranks have parts, in the order of the sequence and without padding, on every rank.
  /// Autograd goes through it. Collective.
  [[nodiscard]] at::Tensor unshard(const at::Tensor& part, int64_t dim) const;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

/// The positions in the whole sequence of the `length` tokens that this rank has, as int64: for embeddings of positions
/// and rotary ones. Without a scope, 0 to length - 1, so a model that calls it needs no other code for the two. Padding
/// has the position of the last token. Not collective.
///
///     x = token_embedding(x) + position_embedding(fsdp::positions(x.size(1), x.device()));
[[nodiscard]] at::Tensor positions(int64_t length, at::Device device = at::kCPU);

/// The mean over the tokens of all ranks of the scope, on every rank: `sum` is that of this rank's losses, `count` how
/// many of its tokens were counted. Ranks have different counts; a mean of their means would be another number.
/// Autograd goes through it: the mean over the ranks of their gradients, which fully_shard takes, is the gradient of
/// this number. Without a scope it is the quotient. Collective.
[[nodiscard]] at::Tensor sequence_mean(const at::Tensor& sum, const at::Tensor& count);

/// Finds out whether a model may be split along its sequences in the scope: computes `forward(input)`, of which dim
/// `dim` are tokens in input and result, once whole and once in the ranks' parts, and compares. The model must be in
/// evaluation (dropout would differ). Collective.
///
/// Throws UsageError for modules that are known to mix tokens without scaled_dot_product_attention, before anything is
/// computed (torch::nn::MultiheadAttention, Transformer and its layers, RNN, LSTM, GRU, and a Conv1d whose kernel has
/// more than one element), by name; and if the results differ. The message then names the first operator, of those that
/// the model calls, whose result differs, and the module whose parameters were read last before it.
///
///     model->eval();
///     fsdp::check_sequence_split(sequence, *gpt, [&](const torch::Tensor& text) { return model(text); }, tokens);
void check_sequence_split(const SequenceParallel& sequence, const torch::nn::Module& model,
                          const std::function<at::Tensor(const at::Tensor&)>& forward, const at::Tensor& input,
                          int64_t dim = 1);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
