// Tests of ranks that share memory: a rank counts as a reader while one of its graphs may run backward, and its peers'
// writes wait for it.

#include "runtime/shm_writers.h"

namespace fsdp::test {
namespace {

using torch::Tensor;
using torch::autograd::grad;

// Computes the same as OwnLinear, for a weight that is already transposed.
struct OwnProduct : torch::autograd::Function<OwnProduct> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, const Tensor& weight) {
    context->save_for_backward({x, weight});
    return torch::matmul(x, weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {torch::matmul(gradients[0], saved[1].t()), torch::matmul(saved[0].t(), gradients[0])};
  }
};

Tensor plain_output(SmallNetImpl& net, const Tensor& x) { return net.forward(x).sum(); }
Tensor own_product(const Tensor& x, const Tensor& weight) { return OwnProduct::apply(x, weight).sum(); }
// Computes with OwnLinear on a view of the weight.
Tensor own_wide_linear(const Tensor& x, const Tensor& weight) {
  return OwnLinear::apply(torch::constant_pad_nd(x, {0, 7}), weight).sum();
}
template <Tensor (*kOutput)(const Tensor&, const Tensor&)>
Tensor output_of_a_view(SmallNetImpl& net, const Tensor& x) {
  return kOutput(x, net.first->weight.t());
}
// Both outputs reach the parameter through the same node. The backward of `other` runs that node. Returns `y`.
template <Tensor (*kOutput)(const Tensor&, const Tensor&)>
Tensor left_of_a_shared_view(Reader& reader) {
  Tensor y, other;
  {
    ForwardScope scope(reader.group);
    const auto weight = reader.net.first->weight.t();
    y = kOutput(reader.x, weight);
    other = kOutput(reader.x, weight);
  }
  other.backward();
  return y;
}

void read_unrecorded(Reader& reader, const Tensor&) {
  torch::NoGradGuard no_grad;
  reader.forward();
}

// Runs a forward and then `act`, and returns the output of the forward.
std::function<Tensor(Reader&)> forward_then(
    const std::function<void(Reader&, const Tensor&)>& act,
    Tensor (*forward)(Reader&) = [](Reader& r) { return r.forward(); }) {
  return [=](Reader& reader) {
    auto y = forward(reader);
    act(reader, y);
    return y;
  };
}

// A graph, what happens before its backward, and the unsharded model's function that gives the same output.
struct LiveGraph {
  const char* name;
  std::function<Tensor(Reader&)> before;
  Tensor (*unsharded)(SmallNetImpl&, const Tensor&) = plain_output;
  bool is_frozen = false;
};

const LiveGraph kLiveGraphs[] = {
    {"AfterAScopeThatRecordedNothing", forward_then(read_unrecorded)},
    {"AfterTheBackwardOfAnotherOneOfItsScope",
     [](Reader& reader) {
       const auto [y, other] = reader.two_outputs();
       other.backward();
       return y;
     }},
    {"AfterASecondForwardAndItsBackward",
     forward_then([](Reader& reader, const Tensor&) { reader.forward().backward(); })},
    {"AfterASecondForwardWasDropped", forward_then([](Reader& reader, const Tensor&) { reader.forward(); })},
    {"AfterSummonFullParams",
     forward_then([](Reader& reader, const Tensor&) { const auto whole = summon_full_params(reader.group); })},
    {"AfterABackwardThatKeptIt", forward_then([](Reader&, const Tensor& y) { y.backward({}, /*retain_graph=*/true); })},
    {"OfCustomFunctions", own_forward, own_output},
    {"OfACustomFunctionThatSharesAViewWithAnotherOne", left_of_a_shared_view<own_product>,
     output_of_a_view<own_product>},
    {"OfACustomFunctionThatTakesAViewOfAViewThatItShares", left_of_a_shared_view<own_wide_linear>,
     output_of_a_view<own_wide_linear>},
    {"OfACustomFunctionOnADetachedParameter",
     [](Reader& reader) {
       ForwardScope scope(reader.group);
       return own_product(reader.x, reader.net.first->weight.detach().t());
     },
     output_of_a_view<own_product>},
    {"OfCustomFunctionsOnFrozenParameters", forward_then(read_unrecorded, own_forward), own_output, /*is_frozen=*/true},
    {"OfFrozenParameters", forward_then(read_unrecorded), plain_output, /*is_frozen=*/true},
};

class LiveGraphs : public testing::TestWithParam<LiveGraph> {};

// The gradient of what `before` returns must equal the unsharded model's, although peers are about to write.
TEST_P(LiveGraphs, ReadOn) {
  const auto net = shm_net();
  run_against_writers(
      GetParam().before,
      [&](Reader& reader, const Tensor& y, Writers& writers) {
        writers.expect_waiting();
        const auto found = grad({y}, {reader.x})[0];
        const auto expected = grad({GetParam().unsharded(*net, reader.x)}, {reader.x})[0];
        EXPECT_LT(relative_difference(expected, found), 1e-5);
      },
      GetParam().is_frozen);
}

INSTANTIATE_TEST_SUITE_P(Shm, LiveGraphs, testing::ValuesIn(kLiveGraphs),
                         [](const auto& its) { return std::string(its.param.name); });

TEST(LiveGraphs, BesideOneThatRanAndIsHeldReadOnWhileTheRankWaits) {
  Writers writers(1);
  run_readers(3, [&](int rank, Reader& reader) {
    auto [ran, left] = reader.two_outputs();
    ran.backward();
    auto& ranks = default_process_group()->communicator();
    auto message = torch::zeros({1});
    if (rank != 0) ran.reset(), left.reset();
    if (rank == 0) ranks.recv(message, 2, {"message", {}})->wait();
    if (rank == 2) {
      writers.expect_waiting(std::chrono::milliseconds(250));
      ranks.send(message, 0, {"message", {}})->wait();
    }
    left.reset();
    is_writer = rank == 1;
    write_rows(reader.net);
    is_writer = false;
  });
}

}  // namespace
}  // namespace fsdp::test
