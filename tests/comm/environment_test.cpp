// Tests of the environment variables in which launchers tell a rank its place.

#include "comm/rendezvous/environment.h"

#include <map>

#include "comm/frame.h"

namespace fsdp::test {
namespace {

using Variables = std::map<std::string, std::string>;

std::string place_in(const Variables& variables) {
  const auto place = rendezvous_from_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  if (!place) return "none";
  return str_cat("rank ", place->rank, " of ", place->world_size, ", local ", place->local_rank, ", ", place->host, ':',
                 place->port, place->agent_hosts_store ? ", the launcher's store" : "",
                 place->attempt == 0 ? "" : str_cat(", attempt ", place->attempt));
}

// Returns the variables with changes. The value "(unset)" removes a variable.
Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) {
    variables[name] = value;
    if (value == "(unset)") variables.erase(name);
  }
  return variables;
}

const Variables kTorchrun{
    {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kPmi{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}};
const Variables kSlurm{{"SLURM_STEP_ID", "0"},
                       {"SLURM_PROCID", "5"},
                       {"SLURM_STEP_NUM_TASKS", "8"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_STEP_NODELIST", "node[03-05,9],other7"}};

TEST(Environment, OfEachLauncherNamesARanksPlace) {
  const std::vector<std::pair<Variables, std::string>> launches{
      {{}, "none"},
      {{{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1"}}, "none"},
      {{{"RANK", ""}}, "none"},
      {kTorchrun, "rank 3 of 4, local 1, head:1234"},
      {with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}),
       "rank 3 of 4, local 1, head:1234, the launcher's store, attempt 2"},
      {with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}), "rank 3 of 4, local 1, head:1234"},
      // If there is one host, a rank's local rank is its rank.
      {with(kTorchrun, {{"LOCAL_RANK", "(unset)"}, {"MASTER_ADDR", "127.0.0.1"}}),
       "rank 3 of 4, local 3, 127.0.0.1:1234"},
      {with(kTorchrun, {{"LOCAL_RANK", "(unset)"}, {"MASTER_ADDR", "localhost"}}),
       "rank 3 of 4, local 3, localhost:1234"},
      {with(kTorchrun, {{"LOCAL_RANK", "(unset)"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}}),
       "rank 0 of 1, local 0, head:1234"},
      {with(kTorchrun, {{"MASTER_ADDR", "[::1]"}, {"MASTER_PORT", "65535"}}), "rank 3 of 4, local 1, ::1:65535"},
      {kOpenMpi, "rank 1 of 2, local 1, 127.0.0.1:29500"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "77"}}),
       "rank 1 of 4, local 1, head:77"},
      {with(kPmi, {{"MASTER_ADDR", "head"}}), "rank 1 of 2, local 1, head:29500"},
      {with(kPmi, {{"MPI_LOCALNRANKS", "2"}}), "rank 1 of 2, local 1, 127.0.0.1:29500"},
      // Values that PMI does not give come from Slurm.
      {with(kSlurm, {{"PMI_RANK", "4"}, {"PMI_SIZE", "7"}}), "rank 4 of 7, local 1, node03:29500"},
      {kSlurm, "rank 5 of 8, local 1, node03:29500"},
      {with(kSlurm, {{"MASTER_ADDR", "head"}}), "rank 5 of 8, local 1, head:29500"},
      // A step without its own number of tasks uses its job's number. The shell of a job is not a rank.
      {with(kSlurm, {{"SLURM_NTASKS", "6"}, {"SLURM_STEP_NUM_TASKS", "(unset)"}}),
       "rank 5 of 6, local 1, node03:29500"},
      {with(kSlurm, {{"SLURM_NTASKS", "8"}, {"SLURM_STEP_ID", "(unset)"}}), "none"},
      {with(kSlurm, kTorchrun), "rank 3 of 4, local 1, head:1234"}};
  for (const auto& [variables, place] : launches) EXPECT_EQ(place_in(variables), place);
}

TEST(Environment, AVariableThatIsMissingOrWrongIsNamed) {
  std::vector<std::pair<Variables, std::string>> mistakes{
      {with(kTorchrun, {{"WORLD_SIZE", "0"}}), "not below 1"},
      {with(kTorchrun, {{"RANK", "4"}}), "RANK is 4, expected a number below WORLD_SIZE, which is 4"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}}), "MASTER_ADDR is not set"},
      {with(kPmi, {{"MASTER_ADDR", "head"}, {"MPI_LOCALRANKID", "(unset)"}}), "MPI_LOCALRANKID is not set"},
      {with(kSlurm, {{"SLURM_STEP_NODELIST", "node[1"}}), "SLURM_STEP_NODELIST is 'node[1'"}};
  for (const auto& [name, value] : kTorchrun) {
    const auto without = with(kTorchrun, {{name, "(unset)"}});
    mistakes.emplace_back(without, "the environment variable " + name + " is not set");
    mistakes.emplace_back(without, "fsdprun");
  }
  for (const std::string value : {"7x", "-1", "+1", " 1", "1.0", "99999999999", "one"})
    mistakes.emplace_back(with(kTorchrun, {{"RANK", value}}), "RANK is '" + value + "', expected a whole number");
  for (const char* value : {"0", "65536", "-5", "80a"})
    mistakes.emplace_back(with(kTorchrun, {{"MASTER_PORT", value}}), "from 1 to 65535");
  for (const auto& [variables, part] : mistakes) expect_error([&of = variables] { place_in(of); }, {part});
}

TEST(Environment, TheFirstHostOfASlurmListIsFound) {
  const std::vector<std::pair<std::string, std::string>> lists{{"node1", "node1"},
                                                               {"a,b", "a"},
                                                               {"node[03-05,9],other7", "node03"},
                                                               {"node[9]", "node9"},
                                                               {"r[1-2]n[007-010]-ib,x", "r1n007-ib"}};
  for (const auto& [list, first] : lists) EXPECT_EQ(first_slurm_host(list), first);
  for (const char* wrong : {"", ",a", "node[1", "node1]", "node[]", "node[a-b]"})
    EXPECT_EQ(first_slurm_host(wrong), std::nullopt) << wrong;
}

}  // namespace
}  // namespace fsdp::test
