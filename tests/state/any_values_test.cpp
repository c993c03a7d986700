// Tests that all values that a model and an optimizer may hold are saved and loaded again, or are refused before
// anything is written.

#include <limits>

#include "state/format/checkpoint_reader.h"
#include "state/trainee.h"

namespace fsdp::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

bool is_same_number(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

TEST(AnyValues, NumbersOfOptimizersNeedNotBeFinite) {
  for (const double number : {kInf, -kInf, kNan, std::numeric_limits<double>::denorm_min()})
    for (const int world : {1, 2}) {
      SCOPED_TRACE(c10::str(number, " on ", world));
      const TemporaryFolder folder;
      run_ranks(world, [&](SavedRun& run) {
        const auto options_of = [](SavedRun& of) -> torch::optim::AdamWOptions& {
          return static_cast<torch::optim::AdamWOptions&>(of.optimizer->param_groups()[0].options());
        };
        run.train(0);
        options_of(run).lr(number);
        options_of(run).eps(number);
        options_of(run).betas({number, 0.5});
        run.save(folder.path(), 1);
        SavedRun loaded{FullyShardOptions{}};
        EXPECT_EQ(error_of([&] { loaded.load(folder.path()); }), "");
        const auto& found = options_of(loaded);
        EXPECT_TRUE(is_same_number(found.lr(), number) && is_same_number(found.eps(), number));
        EXPECT_TRUE(is_same_number(std::get<0>(found.betas()), number) && std::get<1>(found.betas()) == 0.5);
      });
    }
}

// A module with a parameter and buffers of one dtype. `factor` makes the values of two modules differ.
struct DtypeNetImpl : torch::nn::Module {
  DtypeNetImpl(c10::ScalarType dtype, double factor) {
    const auto values = [&](at::IntArrayRef sizes) {
      const auto real = torch::arange(c10::multiply_integers(sizes), torch::kDouble).reshape(sizes).mul(factor);
      return (c10::isComplexType(dtype) ? torch::complex(real, real + 0.5) : real).to(dtype);
    };
    register_parameter("weight", values({5, 3}), /*requires_grad=*/false);  // only floating dtypes can train
    register_buffer("scalar", values({}));
    register_buffer("none", values({0, 2}));
    register_buffer("seen", values({4}));
  }
  std::vector<Tensor> values() {
    auto all = buffers();
    all.push_back(full_tensor(named_parameters()["weight"]));
    return all;
  }
};

void expect_same_bits(const std::vector<Tensor>& expected, const std::vector<Tensor>& found) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(expected[i].sizes(), found[i].sizes());
    const auto bytes = [](const Tensor& tensor) {
      return std::string(static_cast<const char*>(tensor.contiguous().const_data_ptr()), tensor.nbytes());
    };
    EXPECT_EQ(bytes(expected[i]), bytes(found[i])) << "tensor " << i;
  }
}

TEST(AnyValues, EveryDtypeIsSavedWhetherTheFormatHasANameForItOrNot) {
  const auto dtypes = {torch::kComplexDouble, torch::kComplexFloat, torch::kComplexHalf,
                       at::kFloat8_e4m3fn,    at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz,
                       at::kFloat8_e8m0fnu,   torch::kHalf,         torch::kLong};
  for (const auto dtype : dtypes)
    for (const int world : {1, 3}) {
      SCOPED_TRACE(c10::str(dtype, " on ", world));
      const TemporaryFolder folder;
      run_thread_ranks(world, [&, of = dtype](int) {
        DtypeNetImpl saved(of, 1);
        const auto group = fully_shard(static_cast<torch::nn::Module&>(saved));
        const auto expect_loaded = [&](const char* what, const auto& save, const auto& load) {
          SCOPED_TRACE(what);
          DtypeNetImpl loaded(of, 2);
          const auto other = fully_shard(static_cast<torch::nn::Module&>(loaded));
          ASSERT_EQ(text_of_error(save), "");
          ASSERT_EQ(text_of_error([&] { load(other); }), "");
          expect_same_bits(saved.values(), loaded.values());
        };
        expect_loaded("checkpoint", [&] { save_checkpoint(folder.path(), group); },
                      [&](const Group& other) { load_checkpoint(folder.path(), other); });
        const auto file = folder / "whole.safetensors";
        expect_loaded("file", [&] { save_safetensors(file, group); },
                      [&](const Group& other) { load_safetensors(file, other); });
        std::vector<std::pair<std::string, Tensor>> whole;
        expect_loaded("dict", [&] { whole = full_state_dict(group); },
                      [&](const Group& other) { load_full_state_dict(whole, other); });
      });
      EXPECT_THAT(state::problems_of(folder.path()), IsEmpty());
    }
}

// Returns a module with a layer and a buffer of these names.
std::shared_ptr<SmallNetImpl> named_net(const std::string& module, const std::string& buffer) {
  return build_alike([&] {
    auto net = std::make_shared<SmallNetImpl>();
    net->register_module(module, torch::nn::Linear(2, 2));
    net->register_buffer(buffer, torch::ones({2}));
    return net;
  });
}

TEST(AnyValues, AnArchiveIsReadableOrItsNamesAreRefused) {
  const std::vector<std::string> names{"plain", "0",    "a b",  "in",   "class", "None", "print", "\xc3\xa9t\xc3\xa9",
                                       "a\"b",  "a'b",  "a\\b", "a\nb", "a\tb",  "a\rb", "\x01",  "a/b",
                                       "a:b",   "#",    "__init__", "training"};
  const TemporaryFolder folder;
  std::vector<std::string> refused;
  run_thread_ranks(2, [&](int r) {
    for (const auto& name : names)
      for (const bool is_module : {true, false}) {
        SCOPED_TRACE(name + (is_module ? " of a module" : " of a buffer"));
        std::shared_ptr<SmallNetImpl> net;
        try {
          net = is_module ? named_net(name, "plain_buffer") : named_net("plain_module", name);
        } catch (const c10::Error&) {
          continue;  // no module can have this name
        }
        const auto group = fully_shard(static_cast<torch::nn::Module&>(*net));
        const auto path = folder / "model.pt";
        const auto error = error_of<UsageError>([&] { save(group, path); });
        if (!error.empty()) {
          EXPECT_THAT(error, AllOf(HasSubstr(name), HasSubstr("save_safetensors")));
          if (r == 0) refused.push_back(name);
          continue;
        }
        EXPECT_EQ(error_of([&] { load(group, path); }), "");
      }
  });
  for (const auto* name : {"plain", "0", "\xc3\xa9t\xc3\xa9"}) EXPECT_THAT(refused, Not(::testing::Contains(name)));
}

}  // namespace
}  // namespace fsdp::test
