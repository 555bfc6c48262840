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

// Starts a program: creates an instance, passes it the prompt, and runs its first step. Matchers that are started with
// the same `variables` share them, also with their forks. Rolling back a write undoes it for all of them; a write from
// before a fork is undone when both have rolled it back. Throws ProgramError.
weft_matcher start_matcher(std::shared_ptr<const Program> program, std::string argument,
                           const std::vector<std::int32_t> &prompt, std::shared_ptr<Variables> variables);

// Returns the number of bytes saved for rollbacks of the program; 0 for any other matcher.
std::size_t undo_bytes_of(const weft_matcher &matcher);

// Returns the end of the program's log, including text written for drafts, or nothing for any other matcher. Callable
// at any time, on any thread.
std::optional<std::string> log_of(const weft_matcher &matcher);

// The last part of a program's log, at most log_bytes, and its request's variables.
struct Report {
  std::string log;
  Variables::Values variables;
};
// Returns the report after `num_tokens` tokens of the answer, without the writes of later steps, or nothing for any
// other matcher. The program may also come after free text (`Guide.after`). Callable at any time, on any thread.
std::optional<Report> report_of(const weft_matcher &matcher, std::int64_t num_tokens);

}  // namespace weft::aici
