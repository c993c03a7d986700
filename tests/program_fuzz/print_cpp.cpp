#include <c10/util/StringUtil.h>

#include <iomanip>
#include <sstream>

#include "program_fuzz/fuzz.h"
#include "program_fuzz/tables.h"

namespace fsdp::test::fuzz {
namespace {

// Prints every number with enough digits to identify it.
template <class Number>
  requires std::is_arithmetic_v<Number>
std::string text_of(Number number) {
  std::ostringstream text;
  text << std::boolalpha << std::setprecision(17) << number;
  return text.str();
}
std::string text_of(const std::string& text) { return '"' + text + '"'; }

std::string text_of(Kind kind) { return c10::str("kind_named(\"", info_of(kind).name, "\")"); }
std::string text_of(Cell cell) { return c10::str("cell_named(\"", info_of(cell).name, "\")"); }
std::string text_of(Optimizer optimizer) { return c10::str("optimizer_named(\"", info_of(optimizer).name, "\")"); }
std::string text_of(Entry entry) { return c10::str("Entry{", static_cast<int>(entry), '}'); }
std::string text_of(Recompute recompute) { return c10::str("Recompute{", static_cast<int>(recompute), '}'); }
std::string text_of(WhenToReshard when) { return c10::str("WhenToReshard{", static_cast<int>(when), '}'); }
std::string text_of(Strategy strategy) { return c10::str("fsdp::Strategy::", strategy); }
std::string text_of(c10::ScalarType dtype) { return c10::str("torch::k", dtype); }

std::string text_of(const Node& node);
std::string text_of(const Model& model);
std::string text_of(const Statement& statement);
std::string text_of(const Lag& lag);
std::string text_of(const std::vector<int>& numbers) { return c10::str('{', c10::Join(", ", numbers), '}'); }

// Prints one item per line.
template <class Item>
std::string text_of(const std::vector<Item>& items) {
  std::string lines;
  for (const auto& item : items) lines += '\n' + text_of(item) + ',';
  c10::ReplaceAll(lines, "\n", "\n  ");
  return '{' + lines + '}';
}

// Prints the fields that differ from their defaults.
template <class Of, class... Fields>
std::string text_of(const Of& object, const std::tuple<Fields...>& fields) {
  const Of plain{};
  std::vector<std::string> texts;
  const auto add = [&](const auto& field) {
    const auto& value = object.*field.member;
    if (!(value == plain.*field.member)) texts.push_back(c10::str('.', field.name, " = ", text_of(value)));
  };
  std::apply([&](const auto&... field) { (add(field), ...); }, fields);
  return c10::str('{', c10::Join(", ", texts), '}');
}

std::string text_of(const Node& node) { return text_of(node, kFieldsOfNode); }
std::string text_of(const Model& model) { return text_of(model, kFieldsOfModel); }
std::string text_of(const Lag& lag) { return text_of(lag, kFieldsOfLag); }
std::string text_of(const Statement& statement) { return text_of(statement, kFieldsOfStatement); }

}  // namespace

std::string print_cpp(const Program& program) {
  return c10::str("// In place of main.cpp, this runs the program on ranks and unsharded, and compares the results.\n",
                  "#include \"program_fuzz/fuzz.h\"\n\nint main() {\n  using namespace fsdp::test::fuzz;\n",
                  "  Program program", text_of(program, kFieldsOfProgram), ";\n  number_statements(program);\n",
                  "  return run_crew({program}, {}).finding ? 1 : 0;\n}\n");
}

}  // namespace fsdp::test::fuzz
