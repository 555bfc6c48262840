#include "matcher_wasm.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

#include "guest_pool.h"
#include "wasm_error.h"
#include "wasm_instance.h"
#include "wasm_step.h"
#include "wasm_undo.h"

namespace weft {
namespace {

// Tokens that must be taken before the program is asked again.
struct Forced {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> told;  // what the program is told of then
  std::int32_t sampled = -1;
};

// Where a sequence is, beside its instance. What it points to never changes.
struct Position {
  std::shared_ptr<const WasmDecision> decision;
  std::shared_ptr<const Forced> forced;  // null: the decision's mask holds
  std::size_t num_forced = 0;            // taken of them
  bool is_terminated = false;
  std::uint32_t num_steps = 0;
  std::uint64_t log_total = 0;
};

// What taking one token changed.
struct Taken {
  Position before;
  bool has_run = false;  // the program was asked
  GuestChange change;
  WasmVariables::Writes writes;

  std::size_t num_bytes() const { return change.num_bytes() + WasmVariables::num_bytes(writes); }
};

// A program that asks for nothing is asked again, as a server of many steps would; not for ever.
constexpr int kMaxEmptySteps = 100;

class WasmMatcher {
 public:
  WasmMatcher(std::shared_ptr<const WasmProgram> program, std::string argument,
              std::shared_ptr<WasmVariables> variables)
      : program_(std::move(program)), instance_(make_host(program_, std::move(argument), std::move(variables))) {}

  void start(const std::vector<std::int32_t> &prompt) {
    run_as_guest([&] {
      instance_.begin_time(program_->limits.start_ms, "start_ms", "to start");
      instance_.instantiate();
      instance_.create();
      check_prompt(instance_.init_prompt(R"({"prompt":)" + json_tokens(prompt) + "}"), prompt);
      position_ = ask(position_, {}, -1);
      shadow_.follow(instance_);
    });
    keep_log();
  }

  int accept(std::int32_t token) {
    spliced_.clear();
    is_spliced_ = false;
    if (!takes(token)) return 0;
    Taken taken;
    taken.before = position_;
    Position next = position_;
    int outcome = 1;
    if (next.forced) {
      ++next.num_forced;
      if (program_->is_end(token)) {
        next.is_terminated = true;
      } else if (next.num_forced == next.forced->tokens.size()) {
        run(taken, next, next.forced->told, next.forced->sampled);
      }
    } else if (next.decision->stops) {
      next.is_terminated = true;
    } else {
      const WasmSplice *splice = next.decision->splice_of(token);
      if (splice && splice->replaces) {
        outcome = replace(taken, next, splice->tokens, token);
      } else if (program_->is_end(token)) {
        next.is_terminated = true;
      } else if (splice && !splice->tokens.empty()) {
        std::vector<std::int32_t> told{token};
        told.insert(told.end(), splice->tokens.begin(), splice->tokens.end());
        next.forced = std::make_shared<const Forced>(Forced{splice->tokens, std::move(told), token});
        next.num_forced = 0;
      } else {
        run(taken, next, {token}, token);
      }
    }
    position_ = std::move(next);
    push(std::move(taken));
    return outcome;
  }

  int validate(const std::int32_t *tokens, int count) {
    int accepted = 0;
    try {
      // Whether the last is taken can be told without asking the program.
      int outcome = 1;
      while (outcome == 1 && accepted + 1 < count)
        if ((outcome = accept(tokens[accepted])) > 0) ++accepted;
      const int taken = accepted + (outcome == 1 && accepted < count && takes(tokens[accepted]));
      rollback(accepted);
      return taken;
    } catch (...) {
      const std::exception_ptr raised = std::current_exception();
      rollback(accepted);
      std::rethrow_exception(raised);
    }
  }

  void fill(std::int32_t *row, int words) const {
    const int needed = program_->words();
    if (words < needed) throw WasmError("the mask row is shorter than the vocabulary");
    std::memset(row, 0, static_cast<std::size_t>(words) * sizeof *row);
    const auto allow = [row](std::int32_t token) {
      row[token / 32] = static_cast<std::int32_t>(static_cast<std::uint32_t>(row[token / 32]) | 1u << (token % 32));
    };
    if (position_.forced && !position_.is_terminated) {
      allow(position_.forced->tokens[position_.num_forced]);
    } else if (position_.is_terminated || position_.decision->stops) {
      for (const std::int32_t token : program_->end_tokens) allow(token);
    } else {
      std::memcpy(row, position_.decision->mask.data(), static_cast<std::size_t>(needed) * sizeof *row);
    }
  }

  void rollback(int count) {
    if (count < 0) throw WasmError("can't roll back a negative number of tokens");
    check_whole();
    if (static_cast<std::size_t>(count) > taken_.size())
      throw WasmError(
          "rollback of " + std::to_string(count) + " tokens, where " + std::to_string(taken_.size()) +
          (num_merged_ > 0 ? " can be taken back; raise undo_tokens or undo_bytes to allow more" : " were taken"));
    bool has_run = false;
    for (int i = 0; i < count; ++i) {
      has_run |= undo(*taken_.back());
      num_undo_bytes_ -= taken_.back()->num_bytes();
      taken_.pop_back();
    }
    restore(has_run, false);
  }

  void reset() {
    rollback(static_cast<int>(taken_.size()));
    if (num_merged_ == 0) return;
    position_ = first_;
    if (!merged_.is_empty()) shadow_.undo(merged_.whole());
    instance_.host.variables->undo(merged_writes_);
    merged_ = GuestChanges();
    merged_writes_.clear();
    num_merged_ = 0;
    restore(true, false);
  }

  std::unique_ptr<WasmMatcher> fork() {
    check_whole();
    auto copy = std::make_unique<WasmMatcher>(program_, instance_.host.argument, instance_.host.variables);
    run_as_guest([&] {
      shadow_.copy_to(copy->instance_);
      copy->shadow_.follow(copy->instance_);
    });
    copy->instance_.handle = instance_.handle;
    copy->instance_.host.log = instance_.host.log;
    copy->instance_.host.log_dropped = instance_.host.log_dropped;
    copy->position_ = position_;
    copy->first_ = first_;
    copy->taken_ = taken_;
    copy->num_undo_bytes_ = num_undo_bytes_;
    copy->merged_ = merged_;
    copy->merged_writes_ = merged_writes_;
    copy->num_merged_ = num_merged_;
    copy->keep_log();
    return copy;
  }

  int forced(std::int32_t *tokens, int capacity) const {
    if (!position_.forced || position_.is_terminated) return 0;
    const std::vector<std::int32_t> &all = position_.forced->tokens;
    const std::size_t count =
        std::min(all.size() - position_.num_forced, static_cast<std::size_t>(std::max(capacity, 0)));
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(position_.num_forced), count, tokens);
    return static_cast<int>(count);
  }

  bool is_terminated() const { return position_.is_terminated; }
  float temperature() const {
    return position_.forced || position_.is_terminated ? -1.0f : position_.decision->temperature;
  }

  int splice(int *backtrack, std::int32_t *tokens, int capacity) {
    if (!is_spliced_) throw WasmError("the last token was not replaced");
    if (spliced_.size() > static_cast<std::size_t>(std::max(capacity, 0)))
      throw WasmError("a splice of " + std::to_string(spliced_.size()) + " tokens, where there is room for " +
                      std::to_string(capacity));
    *backtrack = 1;
    std::copy(spliced_.begin(), spliced_.end(), tokens);
    return static_cast<int>(spliced_.size());
  }

  std::string log() const {
    std::lock_guard<std::mutex> lock(log_mutex_);
    return kept_log_;
  }

  std::string error;

 private:
  static WasmHost make_host(const std::shared_ptr<const WasmProgram> &program, std::string argument,
                            std::shared_ptr<WasmVariables> variables) {
    WasmHost host;
    host.program = program;
    host.argument = std::move(argument);
    host.sequence = variables->next_sequence();
    host.variables = std::move(variables);
    return host;
  }

  void check_whole() const {
    if (!broken_.empty()) throw WasmError(broken_);
  }

  bool takes(std::int32_t token) {
    check_whole();
    if (token < 0 || token >= program_->num_tokens || position_.is_terminated) return false;
    if (position_.forced) return token == position_.forced->tokens[position_.num_forced];
    return position_.decision->stops ? program_->is_end(token) : position_.decision->allows(token);
  }

  // On a guest thread: tells the program which tokens came, until it wants some to be sampled or forced.
  Position ask(Position at, const std::vector<std::int32_t> &tokens, std::int32_t sampled) {
    std::string argument = step_argument(tokens, sampled, instance_.host.sequence);
    for (int i = 0; i < kMaxEmptySteps; ++i) {
      // Counted by steps, so that a step that is taken again gets the same.
      instance_.host.ticket = ++at.num_steps;
      instance_.mid_process(std::move(argument));
      auto decision = std::make_shared<WasmDecision>(read_decision(instance_.host));
      if (decision->stops || !decision->mask.empty() || !decision->forced.empty()) {
        at.forced.reset();
        if (!decision->forced.empty())
          at.forced = std::make_shared<const Forced>(Forced{decision->forced, decision->forced, -1});
        at.num_forced = 0;
        at.decision = std::move(decision);
        at.log_total = instance_.host.log_total();
        return at;
      }
      argument = step_argument({}, -1, instance_.host.sequence);
    }
    throw WasmError("the program neither sampled nor forced a token in " + std::to_string(kMaxEmptySteps) + " steps");
  }

  // Asks the program and notes what it changed; on failure all is as it was before.
  void run(Taken &taken, Position &next, const std::vector<std::int32_t> &tokens, std::int32_t sampled) {
    run_as_guest([&] {
      try {
        instance_.host.writes.clear();
        instance_.begin_time(program_->limits.step_ms, "step_ms", "for one step");
        next = ask(next, tokens, sampled);
        taken.change = shadow_.follow(instance_);
        taken.has_run = true;
        taken.writes = std::move(instance_.host.writes);
      } catch (...) {
        const std::exception_ptr raised = std::current_exception();
        instance_.host.variables->undo(instance_.host.writes);
        restore_here(true);
        std::rethrow_exception(raised);
      }
    });
    keep_log();
  }

  int replace(Taken &taken, Position &next, std::vector<std::int32_t> tokens, std::int32_t sampled) {
    const auto end =
        std::find_if(tokens.begin(), tokens.end(), [this](std::int32_t token) { return program_->is_end(token); });
    if (end != tokens.end()) {
      tokens.erase(end + 1, tokens.end());
      next.is_terminated = true;
    } else {
      run(taken, next, tokens, sampled);
    }
    spliced_ = std::move(tokens);
    is_spliced_ = true;
    return 2;
  }

  void push(Taken taken) {
    num_undo_bytes_ += taken.num_bytes();
    taken_.push_back(std::make_shared<const Taken>(std::move(taken)));
    // What can't be kept is merged into one change that leads back to the start.
    while (taken_.size() > static_cast<std::size_t>(program_->limits.undo_tokens) ||
           num_undo_bytes_ > static_cast<std::size_t>(program_->limits.undo_bytes)) {
      if (num_merged_++ == 0) first_ = taken_.front()->before;
      if (taken_.front()->has_run) merged_.append(taken_.front()->change);
      WasmVariables::append(merged_writes_, taken_.front()->writes);
      num_undo_bytes_ -= taken_.front()->num_bytes();
      taken_.pop_front();
    }
  }

  // Takes back all but the instance, which `restore` does for any number of them. True: there is something to restore.
  bool undo(const Taken &taken) {
    position_ = taken.before;
    if (!taken.has_run) return false;
    shadow_.undo(taken.change);
    instance_.host.variables->undo(taken.writes);
    return true;
  }

  void restore(bool has_changed, bool has_run) {
    spliced_.clear();
    is_spliced_ = false;
    if (!has_changed) return;
    instance_.host.cut_log(position_.log_total);
    if (shadow_.needs_instance(instance_)) {
      run_as_guest([&] { restore_here(has_run); });
    } else {
      restore_here(has_run);
    }
    keep_log();
  }

  void restore_here(bool has_run) {
    try {
      shadow_.restore(instance_, has_run);
    } catch (const std::exception &problem) {
      broken_ = std::string("tokens could not be taken back: ") + problem.what();
      throw WasmError(broken_);
    }
  }

  void keep_log() {
    if (kept_total_ == instance_.host.log_total()) return;
    std::lock_guard<std::mutex> lock(log_mutex_);
    kept_log_ = instance_.host.log;
    kept_total_ = instance_.host.log_total();
  }

  std::shared_ptr<const WasmProgram> program_;
  WasmInstance instance_;
  GuestShadow shadow_;
  Position position_;
  std::deque<std::shared_ptr<const Taken>> taken_;  // shared with forks
  std::size_t num_undo_bytes_ = 0;

  // What was taken before `taken_`.
  Position first_;
  GuestChanges merged_;
  WasmVariables::Writes merged_writes_;
  std::size_t num_merged_ = 0;

  std::vector<std::int32_t> spliced_;  // what came in the place of the last token,
  bool is_spliced_ = false;            // ... if it was replaced
  std::string broken_;                 // why the instance is of no use any more

  mutable std::mutex log_mutex_;
  std::string kept_log_;  // under the mutex
  std::uint64_t kept_total_ = 0;
};

WasmMatcher &self_of(void *self) { return *static_cast<WasmMatcher *>(self); }

// Runs `body`; -1 and its text where it fails.
template <class Body>
int guarded(void *self, Body body) {
  try {
    return body(self_of(self));
  } catch (const std::exception &problem) {
    self_of(self).error = problem.what();
  } catch (...) {
    self_of(self).error = "unknown error";
  }
  return -1;
}

int wasm_accept(void *self, std::int32_t token) {
  return guarded(self, [&](WasmMatcher &matcher) { return matcher.accept(token); });
}
int wasm_validate(void *self, const std::int32_t *tokens, int count) {
  return guarded(self, [&](WasmMatcher &matcher) { return matcher.validate(tokens, count); });
}
int wasm_fill(void *self, std::int32_t *row, int words) {
  return guarded(self, [&](WasmMatcher &matcher) { return matcher.fill(row, words), 1; });
}
int wasm_rollback(void *self, int count) {
  return guarded(self, [&](WasmMatcher &matcher) { return matcher.rollback(count), 0; });
}
void *wasm_fork(void *self) {
  void *copy = nullptr;
  guarded(self, [&](WasmMatcher &matcher) { return copy = matcher.fork().release(), 0; });
  return copy;
}
int wasm_reset(void *self) {
  return guarded(self, [&](WasmMatcher &matcher) { return matcher.reset(), 0; });
}
int wasm_forced(void *self, std::int32_t *tokens, int capacity) {
  return guarded(self, [&](WasmMatcher &matcher) { return matcher.forced(tokens, capacity); });
}
int wasm_is_terminated(void *self) { return self_of(self).is_terminated(); }
const char *wasm_error(void *self) { return self_of(self).error.c_str(); }
void wasm_destroy(void *self) { delete &self_of(self); }
float wasm_temperature(void *self) { return self_of(self).temperature(); }
int wasm_splice(void *self, int *backtrack, std::int32_t *tokens, int capacity) {
  return guarded(self, [&](WasmMatcher &matcher) { return matcher.splice(backtrack, tokens, capacity); });
}

constexpr weft_matcher_ops kOps = {WEFT_MATCHER_ABI, wasm_accept,      wasm_validate, wasm_fill,          wasm_rollback,
                                   wasm_fork,        wasm_reset,       wasm_forced,   wasm_is_terminated, wasm_error,
                                   wasm_destroy,     wasm_temperature, wasm_splice};

}  // namespace

weft_matcher wasm_matcher(std::shared_ptr<const WasmProgram> program, std::string argument,
                          const std::vector<std::int32_t> &prompt, std::shared_ptr<WasmVariables> variables) {
  auto matcher = std::make_unique<WasmMatcher>(std::move(program), std::move(argument), std::move(variables));
  matcher->start(prompt);
  return {&kOps, matcher.release()};
}

bool wasm_log(const weft_matcher &matcher, std::string &log) {
  if (matcher.ops != &kOps) return false;
  log = self_of(matcher.self).log();
  return true;
}

}  // namespace weft
