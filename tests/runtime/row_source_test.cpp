// Where a group's rows come from, and the list of what lies where.

#include "runtime/row_source.h"

#include <fsdp/fsdp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <set>

#include "api/group_view.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "support/oracle.h"

namespace fsdp::test {
namespace {

using runtime::NamedParameter;
using runtime::ParamRows;
using runtime::RowSource;

// What an initialiser knows: a parameter's name and the numbers of rows.
torch::Tensor initial_rows(const std::string& name, c10::IntArrayRef sizes, int64_t first, int64_t count) {
  auto row_sizes = sizes.empty() ? std::vector<int64_t>{1} : sizes.vec();
  std::vector<torch::Tensor> rows;
  for (int64_t row = first; row < first + count; ++row) {
    row_sizes[0] = 1;
    const auto numel = c10::multiply_integers(row_sizes);
    const double of_name = static_cast<double>(name.front()) + static_cast<double>(row) / 7;
    rows.push_back((torch::arange(numel, torch::kFloat) * 0.01 + of_name).view(row_sizes));
  }
  return torch::cat(rows);
}

// Of all kinds: rows that divide unevenly, a scalar, none, an order of memory that is not that of the indices, frozen.
std::vector<NamedParameter> make_parameters() {
  std::vector<NamedParameter> parameters;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& sizes) -> torch::Tensor& {
    const int64_t rows = sizes.empty() ? 1 : sizes[0];
    auto values = rows == 0 ? torch::empty(sizes) : initial_rows(name, sizes, 0, rows).reshape(sizes);
    parameters.push_back({name, values.requires_grad_()});
    return parameters.back().tensor;
  };
  add("frozen", {4, 5}).requires_grad_(false);
  add("bias", {5});
  add("weight", {7, 3});
  add("scale", {});
  add("none", {0, 4});
  auto& kernel = add("kernel", {6, 2, 3, 3});
  kernel = kernel.detach().contiguous(torch::MemoryFormat::ChannelsLast).requires_grad_();
  return parameters;
}

// The parameters as they are on disk, in the order of their indices, one behind the other.
class ParameterFile {
 public:
  explicit ParameterFile(const std::vector<NamedParameter>& parameters) : file_(std::tmpfile()) {
    for (const auto& [name, tensor] : parameters) {
      const auto values = tensor.detach().contiguous();
      offsets_[name] = std::ftell(file_);
      if (values.numel() > 0) std::fwrite(values.const_data_ptr(), 1, values.nbytes(), file_);
    }
    std::fflush(file_);
  }
  ~ParameterFile() { std::fclose(file_); }
  ParameterFile(const ParameterFile&) = delete;
  ParameterFile& operator=(const ParameterFile&) = delete;

  void fill(const ParamRows& wanted) const {
    const auto values = torch::empty(wanted.values.sizes());
    const auto row_bytes = wanted.row_numel() * static_cast<int64_t>(sizeof(float));
    const auto offset = offsets_.at(wanted.name) + wanted.range.first * row_bytes;
    const auto got = pread(fileno(file_), values.mutable_data_ptr(), values.nbytes(), offset);
    EXPECT_EQ(got, wanted.range.count * row_bytes);
    wanted.values.copy_(values);
  }

 private:
  std::FILE* file_;
  std::map<std::string, int64_t> offsets_;
};

// A group that has its rows from `sources` and was not installed, so that the parameters are as they were.
std::shared_ptr<runtime::ParamGroup> make_group_of(const std::vector<NamedParameter>& parameters,
                                                   const std::vector<RowSource>& sources) {
  std::vector<runtime::GroupMember> members;
  for (const auto& parameter : parameters) members.push_back({parameter});
  auto group = runtime::ParamGroup::create(
      {"group", members, runtime::Placement(default_process_group()), std::make_shared<runtime::RankState>(), {}, {}});
  for (auto& flat : group->flats()) flat.allocate_shard(nullptr);
  group->params().take_rows(sources);
  return group;
}

void expect_rows_of(const std::vector<NamedParameter>& parameters, runtime::ParamGroup& group, const char* source) {
  std::map<std::string, torch::Tensor> whole;
  for (const auto& [name, tensor] : parameters) whole[name] = tensor.dim() == 0 ? tensor.view({1}) : tensor;
  for (const auto& rows : group.params().list_rows()) {
    const auto expected = whole.at(rows.name).narrow(0, rows.range.first, rows.range.count);
    const runtime::OwnOperators own_operators;
    EXPECT_TRUE(torch::equal(rows.values, expected)) << rows.name << " from " << source;
  }
}

TEST(RowSources, TensorsFilesAndInitialisersFillTheSameRowsAndAreAskedForEachOnOneRank) {
  for (int world : worlds_up_to(4)) {
    std::mutex mutex;
    std::map<std::string, std::multiset<int64_t>> asked;
    run_thread_ranks(world, [&](int) {
      const auto parameters = make_parameters();
      const ParameterFile file(parameters);
      std::vector<RowSource> tensors, ranges, initialisers;
      for (const auto& parameter : parameters) {
        tensors.push_back(runtime::rows_of_tensor(parameter.tensor.detach()));
        ranges.push_back([&](const ParamRows& wanted) { file.fill(wanted); });
        initialisers.push_back([&](const ParamRows& wanted) {
          wanted.values.copy_(initial_rows(wanted.name, wanted.sizes, wanted.range.first, wanted.range.count));
          const std::lock_guard lock(mutex);
          EXPECT_GT(wanted.range.count, 0);
          for (int64_t row = 0; row < wanted.range.count; ++row) asked[wanted.name].insert(wanted.range.first + row);
        });
      }
      expect_rows_of(parameters, *make_group_of(parameters, tensors), "tensors");
      expect_rows_of(parameters, *make_group_of(parameters, ranges), "a file");
      expect_rows_of(parameters, *make_group_of(parameters, initialisers), "an initialiser");
    });
    for (const auto& [name, tensor] : make_parameters()) {
      std::multiset<int64_t> expected;
      for (int64_t row = 0; row < (tensor.dim() == 0 ? 1 : tensor.size(0)); ++row) expected.insert(row);
      EXPECT_EQ(asked[name], expected) << name;
    }
  }
}

// In memory 'b' comes first and 'a' last: only so do equal slices cut no row of them.
struct OutOfOrder : torch::nn::Module {
  torch::Tensor frozen = register_parameter("frozen", torch::ones({2, 2}), /*requires_grad=*/false);
  torch::Tensor a = register_parameter("a", torch::ones({4, 16}));
  torch::Tensor b = register_parameter("b", torch::ones({8, 48}));
  torch::Tensor c = register_parameter("c", torch::ones({3, 40}));
};

TEST(ListOfRows, IsInTheOrderOfMemoryAndHasEveryParameterWithItsGlobalSizes) {
  for (int world : worlds_up_to(3))
    run_thread_ranks(world, [&](int) {
      OutOfOrder net;
      std::map<std::string, torch::Tensor> parameters;
      for (const auto& item : net.named_parameters()) parameters[item.key()] = item.value();
      const auto group = fully_shard(static_cast<torch::nn::Module&>(net));
      auto& params = param_groups(group).front()->params();
      std::set<std::string> names;
      std::map<const void*, uintptr_t> last_of_buffer;
      for (const auto& rows : params.list_rows()) {
        names.insert(rows.name);
        const auto& parameter = parameters.at(rows.name);
        EXPECT_TRUE(rows.parameter.is_same(parameter));
        EXPECT_EQ(rows.sizes, global_sizes(parameter));
        EXPECT_EQ((LocalRowRange{rows.range.first, rows.range.count}), local_rows(parameter));
        EXPECT_EQ(rows.values.numel(), rows.range.count * rows.row_numel());
        if (rows.values.numel() == 0) continue;
        const auto begin = reinterpret_cast<uintptr_t>(rows.values.const_data_ptr());
        EXPECT_EQ(begin, reinterpret_cast<uintptr_t>(parameter.const_data_ptr()));
        auto& last = last_of_buffer[memory::buffer_of(rows.values).get()];
        EXPECT_GT(begin, last) << rows.name;
        last = begin;
      }
      EXPECT_EQ(names.size(), parameters.size());
      EXPECT_LE(last_of_buffer.size(), 2U) << "what trains, and what is frozen";
    });
}

}  // namespace
}  // namespace fsdp::test
