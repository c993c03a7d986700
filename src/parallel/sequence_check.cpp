#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Type.h>
#include <fsdp/collectives.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/core/check.h"
#include "parallel/sequence_scope.h"
#include "runtime/compat.h"
#include "runtime/operator_traits.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;

template <class... Types>
bool is_any_of(const nn::Module& module) {
  return (... || (dynamic_cast<const Types*>(&module) != nullptr));
}

bool mixes_tokens(const nn::Module& module) {
  if (const auto* conv = dynamic_cast<const nn::Conv1dImpl*>(&module))
    return conv->options.kernel_size()->front() != 1;
  return is_any_of<nn::MultiheadAttentionImpl, nn::TransformerImpl, nn::TransformerEncoderLayerImpl,
                   nn::TransformerDecoderLayerImpl, nn::RNNImpl, nn::LSTMImpl, nn::GRUImpl>(module);
}

// Returns the name of the module's class. torch::nn::Module::name() is not used, because it caches the name in the
// module, and threads may share the module.
std::string type_of(const nn::Module& module) {
  auto name = c10::demangle(typeid(module).name());
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

double most(const at::Tensor& tensor) { return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>(); }

// Returns true if the tensors differ by more than rounding. The kernels for whole sequences and for parts may round
// differently.
bool differ(const at::Tensor& whole, const at::Tensor& other) {
  const bool is_low = at::toOpMathType(whole.scalar_type()) != whole.scalar_type();
  return !(most(whole - other) <= (is_low ? 5e-2 : 1e-3) * std::max(1.0, most(whole)));
}

// Note [Which operator differs]. LibTorch's C++ frontend has no hooks that tell when a module runs. The dispatcher,
// however, lets a fallback kernel see the arguments and the results of every operator, and an operator that reads a
// parameter shows which module runs. Forward first runs on this rank's tokens, and the results of its operators are
// kept. Then forward runs on the whole sequence, and each result that has a dim of tokens is compared with the kept
// one. Only operators that the model itself calls, such as linear and scaled_dot_product_attention, are compared, and
// not the operators that these call.
class Comparison {
 public:
  explicit Comparison(const nn::Module& model) {
    for (const auto& parameter : model.named_parameters()) {
      const auto dot = parameter.key().rfind('.');
      owners_.emplace(parameter.value().unsafeGetTensorImpl(),
                      dot == std::string::npos ? std::string() : parameter.key().substr(0, dot));
    }
  }

  // Runs `forward` on `input`, this rank's part of the sequence, and keeps the results of the operators.
  template <class Forward>
  at::Tensor keep(const Forward& forward, const at::Tensor& input) {
    const Seen seen(*this);
    return forward(input);
  }
  // Runs `forward` on `input`, the whole sequence of `length` tokens, and compares the results of the operators. `own`
  // has the positions of this rank's tokens, of which only the first `valid` ones are not padding.
  template <class Forward>
  at::Tensor compare(const Forward& forward, const at::Tensor& input, int64_t length, const at::Tensor& own,
                     int64_t valid) {
    length_ = length;
    positions_ = own;
    valid_ = valid;
    const Seen seen(*this);
    return forward(input);
  }

  // Returns the number of the first operator whose results differ on this rank, or kNone, the largest number.
  int64_t first_difference() const { return first_difference_; }
  std::string name(int64_t number) const {
    if (number == kNone) return "No operator's result differs";
    const auto& call = calls_[static_cast<size_t>(number)];
    const auto module = call.module == nullptr  ? std::string("before any module with parameters")
                        : call.module->empty() ? "in the model itself, whose own parameters were read last"
                                               : "in or after module '" + *call.module + '\'';
    return str_cat("The first operator whose result differs is ", call.op, ", ", module);
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  struct Call {
    std::string op;
    const std::string* module;  // name of the module whose parameters were read last; null if none were read
    std::vector<at::Tensor> results;
  };

  // While a Seen exists, the dispatcher calls `intercept` for each operator of this thread.
  class Seen {
   public:
    explicit Seen(Comparison& comparison)
        : former_(std::exchange(current, &comparison)), keys_(included(), excluded()) {
      // The fallback is never removed. It is not called while no Seen exists.
      static const auto* library = [] {
        auto* all = new torch::Library(torch::Library::IMPL, "_", runtime::kComparedKey, __FILE__, __LINE__);
        all->fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
        return all;
      }();
      static_cast<void>(library);
    }
    ~Seen() { current = former_; }
    Seen(const Seen&) = delete;
    Seen& operator=(const Seen&) = delete;

   private:
    static c10::DispatchKeySet included() {
      return c10::impl::tls_local_dispatch_key_set().included_.add(runtime::kComparedKey);
    }
    // kComparedKey is one of autocast's dispatch keys, which LibTorch excludes by default.
    static c10::DispatchKeySet excluded() {
      return c10::impl::tls_local_dispatch_key_set().excluded_.remove(runtime::kComparedKey);
    }

    Comparison* const former_;
    const c10::impl::ForceDispatchKeyGuard keys_;
  };

  static void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, runtime::kComparedKey);
    const c10::impl::ExcludeDispatchKeyGuard unseen(runtime::kComparedKey);
    const auto count = [&](const auto& values) { return std::span(*stack).last(values.size()); };
    current->note_reads(count(op.schema().arguments()));
    op.redispatchBoxed(keys & kBelow, stack);
    current->note(op.operator_name().name, count(op.schema().returns()));
  }

  void note_reads(std::span<const c10::IValue> arguments) {
    runtime::visit_tensors(arguments, [&](const at::Tensor& tensor, size_t, size_t) {
      const auto found = owners_.find(tensor.unsafeGetTensorImpl());
      if (found != owners_.end()) read_last_ = &found->second;
    });
  }

  void note(const std::string& op, std::span<const c10::IValue> results) {
    std::vector<at::Tensor> given;
    runtime::visit_tensors(results, [&](const at::Tensor& tensor, size_t, size_t) {
      // Views of sharded parameters are not compared, because they have no memory of their own.
      if (!tensor.is_floating_point() || runtime::is_marked(*tensor.unsafeGetTensorImpl())) return;
      given.push_back(positions_.defined() ? tensor : tensor.clone());
    });
    if (positions_.defined()) return compare(op, given);
    calls_.push_back({op, read_last_, std::move(given)});
  }

  // Compares the results of the next operator. The comparison ends at the first difference, or when the two runs call
  // different operators.
  void compare(const std::string& op, const std::vector<at::Tensor>& whole) {
    if (is_over_ || next_ == calls_.size()) return;
    const auto& call = calls_[next_++];
    is_over_ = call.op != op || call.results.size() != whole.size();
    for (size_t i = 0; i < whole.size() && !is_over_; ++i)
      if (!is_part(call.results[i], whole[i])) {
        first_difference_ = static_cast<int64_t>(next_) - 1;
        is_over_ = true;
      }
    calls_[next_ - 1].results.clear();
  }

  // Returns true if `part` equals this rank's tokens of `whole`, or if the two cannot be compared because their sizes
  // do not differ in exactly one dim, that of the tokens.
  bool is_part(const at::Tensor& part, const at::Tensor& whole) const {
    std::optional<int64_t> dim;
    if (part.dim() != whole.dim()) return true;
    for (int64_t i = 0; i < whole.dim(); ++i) {
      if (part.size(i) == whole.size(i)) continue;
      if (dim || whole.size(i) != length_ || part.size(i) != positions_.size(0)) return true;
      dim = i;
    }
    if (!dim) return true;
    const auto expected = whole.index_select(*dim, positions_.narrow(0, 0, valid_));
    return !differ(expected, part.narrow(*dim, 0, valid_));
  }

  static thread_local Comparison* current;

  std::unordered_map<const c10::TensorImpl*, std::string> owners_;  // for each parameter, the name of its module
  const std::string* read_last_ = nullptr;
  std::vector<Call> calls_;
  at::Tensor positions_;
  int64_t valid_ = 0, length_ = 0;
  size_t next_ = 0;
  bool is_over_ = false;
  int64_t first_difference_ = kNone;
};

thread_local Comparison* Comparison::current = nullptr;

}  // namespace

void check_sequence_split(const SequenceParallel& sequence, const torch::nn::Module& model,
                          const std::function<at::Tensor(const at::Tensor&)>& forward, const at::Tensor& input,
                          int64_t dim) {
  const auto scope = parallel::SequenceScope::current();
  const auto where = scope->where("check_sequence_split");
  for (const auto& module : model.named_modules(std::string(), /*include_self=*/false))
    if (mixes_tokens(*module.value()))
      require(false, where, "module '", module.key(), "', a ", type_of(*module.value()),
              ", mixes tokens and would see only the tokens of this rank. Replace it with attention by "
              "torch::scaled_dot_product_attention, or keep the model's sequences whole on each rank.");
  const at::NoGradGuard no_grad;
  Comparison comparison(model);
  const auto own = sequence.shard(input, dim);
  const auto parts = sequence.unshard(comparison.keep(forward, own), dim);
  const int64_t length = own.size(dim), of_ring = length * scope->ranks_of(scope->heads());
  const auto layout = scope->layout_of(of_ring, "check_sequence_split");
  const int64_t valid = layout.valid_length(scope->rank_of(scope->ring())) - scope->rank_of(scope->heads()) * length;
  const auto own_positions = positions(length, input.device());
  at::Tensor whole;
  {
    const parallel::SequenceScope::Entered none(nullptr);
    whole = comparison.compare(forward, input, layout.length, own_positions, std::clamp<int64_t>(valid, 0, length));
  }
  require(parts.sizes() == whole.sizes(), where, "expected a result of sizes ", whole.sizes(),
          " from the ranks' parts, found ", parts.sizes(), '.');
  // If any rank finds a difference, every rank throws, and all name the first operator that differs on any rank.
  const auto found = at::tensor({int64_t{differ(whole, parts) ? 0 : 1}, comparison.first_difference()}, at::kLong);
  auto of_all = found;
  for (const auto& axis : {scope->ring(), scope->heads()})
    if (axis) of_all = all_reduce(of_all, ReduceOp::kMin, axis);
  require(of_all[0].item<int64_t>() == 1, where,
          "the ranks' parts give a different result than the whole sequence: they differ by ", most(parts - whole),
          " in values of up to ", most(whole), ". ", comparison.name(of_all[1].item<int64_t>()),
          ". Something in the model mixes tokens without torch::scaled_dot_product_attention, or does not take "
          "positions from fsdp::positions.");
}

}  // namespace fsdp
