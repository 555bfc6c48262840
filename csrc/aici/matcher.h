// A program as a matcher. Its code runs on guest threads (aici/host/guest_pool.h) while the caller waits.
#pragma once

#include <weft/matcher.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aici/host/program.h"
#include "aici/host/variables.h"

namespace weft::aici {

// Starts a program: creates an instance, passes it the prompt, and takes its first step. The matchers that were started
// with the same `variables` share them with each other and with forks; a write that is rolled back is gone for all.
// Throws ProgramError.
weft_matcher start_matcher(std::shared_ptr<const Program> program, std::string argument,
                           const std::vector<std::int32_t> &prompt, std::shared_ptr<Variables> variables);

// The bytes kept to roll the program's tokens back. 0 for any other matcher.
std::size_t undo_bytes_of(const weft_matcher &matcher);

// The end of the program's log, drafts included. None for any other matcher. At any time, on any thread.
std::optional<std::string> log_of(const weft_matcher &matcher);

// The end of a program's log, at most log_bytes, and its request's variables.
struct Report {
  std::string log;
  Variables::Values variables;
};
// The report after the first `num_tokens` tokens after the prompt, without the writes of later steps. The program may
// stand behind free text (`Guide.after`). None for any other matcher. At any time, on any thread.
std::optional<Report> report_of(const weft_matcher &matcher, std::int64_t num_tokens);

}  // namespace weft::aici
