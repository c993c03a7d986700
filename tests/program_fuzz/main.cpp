// Runs random programs over the public API both on ranks and unsharded, and compares the results. The same seed always
// gives the same programs.

#include <CLI/CLI.hpp>
#include <array>
#include <iostream>
#include <map>
#include <random>

#include "program_fuzz/fuzz.h"
#include "program_fuzz/tables.h"

namespace fsdp::test::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  uint64_t seed = 1;
  int programs = 300, only = 0, repeat = 1, most_failures = 5;
  Choice choice;
  CrewOptions crew;
  std::vector<std::string> without;
  bool shrink = false;
};

constexpr size_t kProgramsPerCrew = 50;
constexpr std::array kWrongs{"another value", "an error", "a hang", "a crash"};  // indexed by Wrong

using Numbered = std::pair<int, Program>;

class Fuzz {
 public:
  explicit Fuzz(const Options& options) : options_(options), begin_(Clock::now()) {}

  // Returns true if no program went wrong and every class of statements took place.
  bool run() {
    std::mt19937_64 seeds(options_.seed);
    std::map<std::pair<std::string, int>, std::vector<Numbered>> waiting;
    for (int number = 1; number <= options_.programs && !is_over(); ++number) {
      const uint64_t seed = seeds();
      if (options_.only != 0 && options_.only != number) continue;
      auto program = generate(seed, options_.choice);
      auto& batch = waiting[{program.backend, program.world_size}];
      for (int i = 0; i < options_.repeat; ++i) batch.emplace_back(number, program);
      if (batch.size() >= kProgramsPerCrew) run_batch(std::exchange(batch, {}));
    }
    for (auto& [key, batch] : waiting) run_batch(std::move(batch));
    return report();
  }

 private:
  bool is_over() const { return failed_ >= options_.most_failures; }

  void run_batch(std::vector<Numbered> batch) {
    while (!batch.empty() && !is_over()) {
      std::vector<Program> programs;
      for (const auto& numbered : batch) programs.push_back(numbered.second);
      const auto crew = run_crew(programs, options_.crew);
      for (size_t i = 0; i < crew.passed; ++i) census_.add(programs[i]);
      passed_ += static_cast<int>(crew.passed);
      const size_t done = crew.passed + (crew.finding ? 1 : 0);
      if (crew.finding) tell(batch[crew.passed], *crew.finding);
      batch.erase(batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(done));
    }
  }

  void tell(const Numbered& numbered, const Finding& finding) {
    ++failed_;
    std::cout << "WRONG program " << numbered.first << " (--seed " << options_.seed << " --only " << numbered.first
              << "): " << describe(numbered.second, finding) << std::endl;
    if (!options_.shrink) return;
    const auto shrunk = shrink(numbered.second, finding, options_.crew);
    if (shrunk)
      std::cout << "shrunk: " << describe(shrunk->program, shrunk->finding) << '\n'
                << print_cpp(shrunk->program) << std::endl;
    else
      std::cout << "does not go wrong when it runs alone: perhaps an earlier program in the same processes matters"
                << std::endl;
  }

  static std::string describe(const Program& program, const Finding& finding) {
    const auto order = in_order(program);
    const auto at = static_cast<size_t>(finding.statement);
    const std::string who =
        finding.rank < program.world_size ? c10::str("rank ", finding.rank) : std::string("the unsharded run");
    return c10::str(program.backend, ", ", program.world_size, " ranks: ", item(kWrongs, finding.wrong), " on ", who,
                    " in statement ", finding.statement, " (",
                    at < order.size() ? info_of(order[at]->kind).name : "comparison at the end", "): ", finding.text);
  }

  bool report() const {
    const bool is_whole_run = options_.only == 0 && options_.without.empty() && passed_ >= 250 &&
                              options_.choice.backends.size() == 2 && options_.choice.world_sizes.size() == 3;
    std::cout << census_.table();
    const auto missing = census_.missing();
    if (is_whole_run) std::cout << missing;
    std::cout << "seed " << options_.seed << ": " << passed_ << " programs passed, " << failed_ << " went wrong, "
              << std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin_).count() << " s" << std::endl;
    return failed_ == 0 && (!is_whole_run || missing.empty());
  }

  const Options options_;
  const Clock::time_point begin_;
  Census census_;
  int passed_ = 0, failed_ = 0;
};

// Returns true if the fuzzer finds the errors that it plants.
bool finds_what_is_planted(Options options) {
  bool all = true;
  options.most_failures = 1;
  for (const Plant plant : {Plant::kGradient, Plant::kSkip}) {
    options.crew.plant = plant;
    std::cout << "planted: " << (plant == Plant::kGradient ? "gradients of rank 1" : "writes left out") << std::endl;
    all = !Fuzz(options).run() && all;
  }
  std::cout << (all ? "both planted errors were found" : "a planted error was NOT FOUND") << std::endl;
  return all;
}

int main(int argc, char** argv) {
  Options options;
  bool planted = false;
  CLI::App app("Runs random programs on ranks and unsharded, and compares what they compute.");
  app.add_option("--seed", options.seed, "seed of the programs")->capture_default_str();
  app.add_option("--programs", options.programs, "number of programs")->capture_default_str();
  app.add_option("--only", options.only, "run only the program with this number");
  app.add_option("--repeat", options.repeat, "runs of each program; a race may need several")->capture_default_str();
  app.add_option("--backend", options.choice.backends, "shm, gloo")->delimiter(',')->capture_default_str();
  app.add_option("--ranks", options.choice.world_sizes, "numbers of ranks")
      ->delimiter(',')
      ->check(CLI::Range(1, kMostRanks))
      ->capture_default_str();
  app.add_option("--without", options.without, "statements to leave out, by their names in the table at the end")
      ->delimiter(',');
  app.add_flag("--shrink", options.shrink, "find a short program for each failure and print it as C++");
  app.add_flag("--planted", planted, "plant errors instead, and fail if they are not found");
  try {
    app.parse(argc, argv);
    for (const auto& name : options.without) options.choice.without.push_back(kind_named(name));
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::invalid_argument& error) {
    std::cerr << "--without: " << error.what() << std::endl;
    return 1;
  }
  return (planted ? finds_what_is_planted(options) : Fuzz(options).run()) ? 0 : 1;
}

}  // namespace
}  // namespace fsdp::test::fuzz

int main(int argc, char** argv) { return fsdp::test::fuzz::main(argc, argv); }
