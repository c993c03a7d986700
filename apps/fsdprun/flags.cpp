#include "flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <memory>
#include <sstream>

#include "exit.h"
#include "numbers.h"

namespace fsdprun {
namespace {

// These are torchrun's defaults.
constexpr uint16_t kStaticPort = 29500;
constexpr uint16_t kC10dPort = 29400;

/// The values of the flags as text, before they are checked.
struct Text {
  std::string nodes = "1", node_rank, master_address = "127.0.0.1", master_port;
  bool standalone = false, module = false, no_python = false, prefix = false, no_prefix = false;
  bool json = false;
  std::string endpoint, backend = "static", max_restarts = "0", heartbeat_timeout = "30", peer_grace,
                        shutdown_timeout = "10";
  std::string rendezvous_settings, doctors_backend;
  std::string redirects = "0", tee = "0", shown;
};

class UsageLine : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: fsdprun [flags] [--] program [arguments of the program]\n";
  }
};

[[noreturn]] void refuse(const std::string& message) { throw Exit(kWrongFlags, message + " (see fsdprun --help)"); }

/// Returns names for CLI11: for "--master-addr" it adds the spelling "--master_addr".
std::string both_spellings(const std::string& names) {
  const size_t start = names.rfind("--");
  std::string underscores = names.substr(start + 2);
  std::ranges::replace(underscores, '-', '_');
  return underscores == names.substr(start + 2) ? names : names + ",--" + underscores;
}

/// Adds an option that, as in torchrun, the environment can set too: for --master-addr the variable is PET_MASTER_ADDR.
template <typename T>
void add_option(CLI::App& app, const std::string& names, T& value, const std::string& help) {
  std::string variable = "PET_" + names.substr(names.rfind("--") + 2);
  std::ranges::transform(variable, variable.begin(),
                         [](char c) { return c == '-' ? '_' : static_cast<char>(toupper(c)); });
  app.add_option(both_spellings(names), value, help)->envname(variable);
}

void declare(CLI::App& app, Flags& flags, Text& text) {
  app.description(
      "Starts the ranks of a distributed program, on this host or as one node of several.\n"
      "The flags are those of torchrun; underscores and dashes are equivalent in their names.");
  app.formatter(std::make_shared<UsageLine>());
  app.prefix_command();

  add_option(app, "--nnodes", text.nodes, "number of nodes, or MIN:MAX (default 1)");
  add_option(app, "--nproc-per-node", flags.processes_per_node,
             "ranks on this node: a number, cpu, gpu or auto (GPUs, else CPUs); default 1");
  add_option(app, "--node-rank", text.node_rank, "number of this node, from 0 (default 0)");
  add_option(app, "--master-addr", text.master_address, "host of node 0 (default 127.0.0.1)");
  add_option(app, "--master-port", text.master_port, "port on node 0 (default 29500; on one node a free port)");
  app.add_flag("--standalone", text.standalone, "one node, on a free port");
  add_option(app, "--rdzv-endpoint", text.endpoint, "HOST:PORT where the nodes meet");
  add_option(app, "--rdzv-backend", text.backend,
             "static: --node-rank numbers the nodes; c10d: nodes are numbered in the order in which they join");
  add_option(app, "--rdzv-conf", text.rendezvous_settings,
             "join_timeout=S,last_call_timeout=S: seconds to wait for MIN nodes (600), and then for more nodes (30)");
  add_option(app, "--rdzv-id", flags.run_id, "name of the job, the same on all nodes");
  add_option(app, "--role", flags.role, "ROLE_NAME of the ranks");
  add_option(app, "--max-restarts", text.max_restarts,
             "number of times that all ranks are started again after failures (default 0)");
  add_option(app, "--peer-grace", text.peer_grace,
             "seconds from a rank's failure to SIGTERM for the other ranks (default 15)");
  add_option(app, "--heartbeat-timeout", text.heartbeat_timeout,
             "seconds for which another node's launcher may be silent (default 30)");
  add_option(app, "--shutdown-timeout", text.shutdown_timeout, "seconds from SIGTERM to SIGKILL (default 10)");

  add_option(app, "--log-dir", flags.log_dir, "folder for the files of --redirects and --tee");
  add_option(app, "-r,--redirects", text.redirects,
             "write the ranks' output to files instead of printing it: 1 stdout, 2 stderr, 3 both; or 0:3,2:1 for "
             "local ranks 0 and 2");
  add_option(app, "-t,--tee", text.tee, "write the ranks' output to files and print it; values as for --redirects");
  add_option(app, "--local-ranks-filter", text.shown, "show the output of these local ranks only, e.g. 0,3");
  app.add_flag("--prefix", text.prefix, "begin each line with [rank N] even if there is only one rank");
  app.add_flag(both_spellings("--no-prefix"), text.no_prefix, "do not begin each line with [rank N]");

  app.add_flag("--doctor", flags.doctor,
               "start no program, but compare the hosts of all nodes and measure the connections between them, with 2 "
               "ranks on each node");
  app.add_flag("--json", text.json, "with --doctor: print JSON");
  app.add_option("--backend", text.doctors_backend,
                 "with --doctor: auto, cpu, shm, gloo, hierarchical or nccl (default auto)");

  app.add_flag(both_spellings("--no-python"), text.no_python,
               "accepted for compatibility with torchrun; has no effect");
  app.add_flag("-m,--module", text.module,
               "not supported; for a Python module, write python3 -m MODULE as the program");
}

int number(const std::string& flag, const std::string& text, int least, int most = std::numeric_limits<int>::max()) {
  const auto value = parse_number(text, least, most);
  if (!value) {
    const std::string range = most == std::numeric_limits<int>::max()
                                  ? "not below " + std::to_string(least)
                                  : "from " + std::to_string(least) + " to " + std::to_string(most);
    refuse(flag + " is '" + text + "', expected a whole number " + range);
  }
  return *value;
}

uint16_t port_number(const std::string& flag, const std::string& text) {
  return static_cast<uint16_t>(number(flag, text, 1, std::numeric_limits<uint16_t>::max()));
}

/// Parses N or MIN:MAX.
NodeRange node_range(const std::string& text) {
  const size_t colon = text.find(':');
  const int least = number("--nnodes", text.substr(0, colon), 1);
  if (colon == std::string::npos) return {.least = least, .most = least};
  const int most = number("--nnodes", text.substr(colon + 1), 1);
  if (most < least) refuse("--nnodes is '" + text + "', expected MIN:MAX with MIN not above MAX");
  return {.least = least, .most = most};
}

/// Parses torchrun's KEY=VALUE,... settings.
void read_rendezvous_settings(const std::string& text, Flags& flags) {
  std::istringstream settings(text);
  for (std::string setting; std::getline(settings, setting, ',');) {
    const size_t sign = setting.find('=');
    const std::string key = setting.substr(0, sign);
    const std::string value = sign == std::string::npos ? "" : setting.substr(sign + 1);
    if (key == "join_timeout") {
      flags.join_timeout = std::chrono::seconds(number("join_timeout of --rdzv-conf", value, 1));
    } else if (key == "last_call_timeout") {
      flags.last_call_timeout = std::chrono::seconds(number("last_call_timeout of --rdzv-conf", value, 0));
    } else {
      refuse("--rdzv-conf has '" + setting + "', expected join_timeout=SECONDS or last_call_timeout=SECONDS");
    }
  }
}

/// Parses HOST, HOST:PORT or [IPv6]:PORT. As in torchrun, port 0 means a free port.
MeetingPlace parse_endpoint(const std::string& text, uint16_t default_port) {
  const size_t bracket = text.rfind(']');
  size_t colon = text.rfind(':');
  if (colon != std::string::npos && bracket != std::string::npos && colon < bracket) {
    colon = std::string::npos;
  }
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (host.empty()) refuse("--rdzv-endpoint is '" + text + "', expected HOST:PORT");
  if (colon == std::string::npos) return {.host = host, .port = default_port};
  const std::string port = text.substr(colon + 1);
  if (port == "0") return {.host = host, .port = 0};
  return {.host = host, .port = port_number("the port of --rdzv-endpoint", port)};
}

MeetingPlace choose_meeting_place(const Text& text, const NodeRange& range) {
  const int nodes = range.most;
  const bool is_c10d = text.backend == "c10d";
  if (!is_c10d && text.backend != "static") {
    refuse("--rdzv-backend is '" + text.backend + "', expected static or c10d");
  }
  const bool names_no_place = text.endpoint.empty() && (is_c10d || (text.master_port.empty() && nodes == 1));
  if (text.standalone || names_no_place) {
    if (nodes > 1 && text.standalone) {
      refuse("--standalone is for one node, but --nnodes is " + std::to_string(nodes));
    }
    if (nodes > 1) refuse("--rdzv-backend c10d with several nodes needs --rdzv-endpoint HOST:PORT");
    return {.host = "127.0.0.1", .port = 0};
  }
  MeetingPlace place;
  if (!text.endpoint.empty()) {
    place = parse_endpoint(text.endpoint, is_c10d ? kC10dPort : kStaticPort);
  } else {
    place = parse_endpoint(text.master_address + ":" + (text.master_port.empty() ? "29500" : text.master_port),
                           kStaticPort);
  }
  if (range.is_open() && !is_c10d) {
    refuse(
        "--nnodes MIN:MAX needs --rdzv-backend c10d, because numbers that --node-rank gives have gaps if nodes are "
        "missing");
  }
  if (place.port == 0 && nodes > 1) refuse("--rdzv-endpoint has port 0, expected a port that all nodes know");
  place.numbers_nodes_by_arrival = is_c10d && nodes > 1;
  return place;
}

StreamChoice streams(const std::string& flag, const std::string& text) {
  const auto choice = StreamChoice::parse(text);
  if (!choice) {
    refuse(flag + " is '" + text +
           "', expected 0 (none), 1 (stdout), 2 (stderr), 3 (both), or such numbers by local rank, e.g. 0:3,2:1");
  }
  return *choice;
}

void check_command(std::vector<std::string>& command) {
  if (!command.empty() && command.front() == "--") {
    command.erase(command.begin());
  } else if (!command.empty() && command.front().starts_with("-")) {
    refuse("unknown flag " + command.front());
  }
  if (command.empty()) refuse("no program to start was given");
}

/// Sets the command of the doctor, with which fsdprun starts itself instead of a user's program.
void prepare_doctor(Flags& flags, const Text& text) {
  if (!flags.doctor) {
    if (text.json || !text.doctors_backend.empty()) refuse("--json and --backend are allowed only with --doctor");
    return;
  }
  if (!flags.command.empty()) refuse("--doctor does not start a program, found the program " + flags.command.front());
  const std::string backend = text.doctors_backend.empty() ? "auto" : text.doctors_backend;
  flags.command = {"/proc/self/exe", kDoctorRank, backend, text.json ? "json" : "text"};
  flags.prefix = Prefix::kNever;
}

void complete(Flags& flags, const Text& text) {
  if (text.module) {
    refuse("-m is not supported. To start a Python module, write python3 -m MODULE as the program");
  }
  if (text.prefix && text.no_prefix) refuse("--prefix and --no-prefix exclude each other");
  prepare_doctor(flags, text);
  check_command(flags.command);
  flags.nodes = node_range(text.nodes);
  read_rendezvous_settings(text.rendezvous_settings, flags);
  if (!text.master_port.empty()) port_number("--master-port", text.master_port);
  flags.meeting_place = choose_meeting_place(text, flags.nodes);
  if (!text.node_rank.empty()) flags.node_rank = number("--node-rank", text.node_rank, 0);
  if (flags.node_rank >= flags.nodes.most) {
    refuse("--node-rank is " + text.node_rank + ", expected less than --nnodes, which is " +
           std::to_string(flags.nodes.most));
  }
  flags.max_restarts = number("--max-restarts", text.max_restarts, 0);
  if (!text.peer_grace.empty()) flags.peer_grace = std::chrono::seconds(number("--peer-grace", text.peer_grace, 0));
  flags.heartbeat_timeout = std::chrono::seconds(number("--heartbeat-timeout", text.heartbeat_timeout, 1));
  flags.shutdown_timeout = std::chrono::seconds(number("--shutdown-timeout", text.shutdown_timeout, 0));
  if (text.prefix) flags.prefix = Prefix::kAlways;
  if (text.no_prefix) flags.prefix = Prefix::kNever;
  flags.redirects = streams("--redirects", text.redirects);
  flags.tee = streams("--tee", text.tee);
  if (!text.shown.empty()) {
    flags.shown_local_ranks = parse_local_ranks(text.shown);
    if (!flags.shown_local_ranks) {
      refuse("--local-ranks-filter is '" + text.shown + "', expected a list such as 0,2");
    }
  }
}

}  // namespace

Flags parse_flags(std::vector<std::string> arguments) {
  Flags flags;
  Text text;
  CLI::App app;
  declare(app, flags, text);
  std::ranges::reverse(arguments);  // CLI11 takes arguments from the back.
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    throw Exit(0, app.help());
  } catch (const CLI::ParseError& error) {
    refuse(error.what());
  }
  flags.command = app.remaining();
  if (flags.doctor && app.count("--nproc-per-node") == 0) flags.processes_per_node = "2";
  complete(flags, text);
  return flags;
}

}  // namespace fsdprun
