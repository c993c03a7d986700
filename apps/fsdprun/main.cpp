// fsdprun starts the ranks of a distributed program. docs/launching.md describes it.
#include <exception>
#include <iostream>
#include <string_view>

#include "comm/posix/descriptor.h"
#include "doctor.h"
#include "exit.h"
#include "flags.h"
#include "launch.h"

int main(int argc, char** argv) {
  fsdp::open_standard_streams();
  if (argc > 1 && std::string_view(argv[1]) == fsdprun::kDoctorRank) {
    return fsdprun::run_doctor_rank({argv + 2, argv + argc});
  }
  try {
    return fsdprun::launch(fsdprun::parse_flags({argv + 1, argv + argc}));
  } catch (const fsdprun::Exit& exit) {
    if (exit.status() == 0) {
      std::cout << exit.what();
    } else {
      fsdprun::say(exit.what());
    }
    return exit.status();
  } catch (const std::exception& error) {
    fsdprun::say(error.what());
    return fsdprun::kFailure;
  }
}
