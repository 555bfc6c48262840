#include "aici/matcher.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <new>
#include <utility>

#include "aici/base/error.h"
#include "aici/history.h"
#include "aici/host/guest_pool.h"
#include "aici/host/instance.h"
#include "aici/prompt.h"
#include "aici/turn.h"
#include "grammar/after/rules.h"
#include "matcher/no_throw.h"

namespace weft {
namespace {

// An instance with its history. All that can be decided without the program is decided on the caller's thread.
class WasmMatcher {
 public:
  WasmMatcher(std::shared_ptr<const WasmProgram> program, std::string argument,
              std::shared_ptr<WasmVariables> variables)
      : program_(std::move(program)),
        instance_(make_host(program_, std::move(argument), variables)),
        history_(std::move(variables), program_->limits) {}

  void start(const std::vector<std::int32_t> &prompt) {
    try {
      run_as_guest([&] {
        instance_.host.time.begin(program_->limits.start_ms, "start_ms", "to start");
        instance_.instantiate();
        instance_.create();
        WasmPosition first = begin(instance_, prompt);
        history_.start(instance_, std::move(first), std::exchange(instance_.host.writes, {}));
      });
    } catch (...) {
      take_back_writes();
      throw;
    }
    keep_log();
  }

  // Where a step neither ended nor could be taken back, what it wrote to the variables stays.
  ~WasmMatcher() { instance_.host.variables->keep(instance_.host.writes); }
  WasmMatcher(const WasmMatcher &) = delete;
  WasmMatcher &operator=(const WasmMatcher &) = delete;

  int accept(std::int32_t token) {
    forget_splice();
    if (!takes(token)) return 0;
    WasmTurn turn = turn_of(*program_, position(), token);
    history_.open();
    try {
      if (turn.asks) run(turn);
    } catch (...) {
      history_.drop();
      throw;
    }
    history_.close(std::move(turn.next));
    if (turn.asks) keep_log();
    is_spliced_ = turn.replaces;
    spliced_ = std::move(turn.replacing);
    return is_spliced_ ? 2 : 1;
  }

  int validate(const std::int32_t *tokens, int count) {
    const WasmHistory::Trial trial(history_);
    int accepted = 0;
    try {
      // Whether the last is taken can be told without asking the program.
      int outcome = 1;
      while (outcome == 1 && accepted + 1 < count) {
        if ((outcome = accept(tokens[accepted])) == 0) break;
        trial.check(++accepted);
      }
      const int taken = accepted + (outcome == 1 && accepted < count && takes(tokens[accepted]));
      rollback(accepted);
      return taken;
    } catch (...) {
      const std::exception_ptr raised = std::current_exception();
      rollback(accepted);
      std::rethrow_exception(raised);
    }
  }

  int fill(std::int32_t *row, int words) const { return position().fill(*program_, row, words), 1; }

  // It writes the pages that a step's time was enough to save; a new instance has the time of a start.
  int rollback(int count) {
    return take_back([&] { return history_.take_back(count); }), 0;
  }
  int reset() {
    return take_back([&] { return history_.take_back_all(); }), 0;
  }

  std::unique_ptr<WasmMatcher> fork() {
    check_whole();
    const WasmHost &host = instance_.host;
    auto copy = std::make_unique<WasmMatcher>(program_, host.argument, host.variables);
    copy->instance_.handle = instance_.handle;
    copy->instance_.host.log = host.log;
    copy->instance_.host.log_dropped = host.log_dropped;
    run_as_guest([&] { history_.copy_to(copy->history_, copy->instance_); });
    copy->keep_log();
    return copy;
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

  const WasmPosition &position() const { return history_.position(); }

  std::size_t undo_bytes() const { return history_.num_bytes(); }

  // On any thread.
  std::string log() const {
    std::lock_guard<std::mutex> lock(log_mutex_);
    return kept_log_;
  }
  WasmReport report(std::int64_t num_tokens) const {
    WasmReport report;
    {
      std::lock_guard<std::mutex> lock(log_mutex_);
      std::uint64_t total = marks_.empty() ? kept_total_ : marks_.front().log_total;
      for (const Mark &mark : marks_)
        if (mark.num_tokens <= num_tokens) total = mark.log_total;
      const std::uint64_t beyond =
          std::min<std::uint64_t>(kept_total_ - std::min(total, kept_total_), kept_log_.size());
      report.log = kept_log_.substr(0, kept_log_.size() - beyond);
    }
    const auto most = static_cast<std::size_t>(program_->limits.log_bytes);
    if (report.log.size() > most) report.log.erase(0, report.log.size() - most);
    const WasmHost &host = instance_.host;
    report.variables = host.variables->values_without({host.sequence, num_tokens});
    return report;
  }

  std::string error;

 private:
  static WasmHost make_host(const std::shared_ptr<const WasmProgram> &program, std::string argument,
                            const std::shared_ptr<WasmVariables> &variables) {
    WasmHost host;
    host.program = program;
    host.argument = std::move(argument);
    host.sequence = variables->next_sequence();
    host.variables = variables;
    return host;
  }

  void check_whole() const {
    if (!broken_.empty()) throw WasmError(broken_);
  }

  bool takes(std::int32_t token) const {
    check_whole();
    return position().takes(*program_, token);
  }

  // The state of a step that has not ended.
  void take_back_writes() {
    instance_.host.variables->undo(instance_.host.writes);
    instance_.host.writes.clear();
  }

  // Asks the program; on failure all is as it was before, except the instance, which is restored when it is used again.
  void run(WasmTurn &turn) {
    run_as_guest([&] {
      try {
        instance_.host.writes.clear();
        restore(is_stale_);
        instance_.host.time.begin(program_->limits.step_ms, "step_ms", "for one step");
        turn.next = ask(instance_, std::move(turn.next), turn.told, turn.sampled);
        history_.follow(instance_);
        instance_.host.time.check();
      } catch (...) {
        const std::exception_ptr raised = std::current_exception();
        or_lose([&] {
          is_stale_ = true;
          take_back_writes();
          instance_.host.cut_log(position().log_total);
        });
        std::rethrow_exception(raised);
      }
    });
  }

  template <class Body>
  void take_back(Body body) {
    check_whole();
    bool has_changed = false;
    try {
      has_changed = body();
    } catch (const WasmError &) {
      throw;  // it was refused
    } catch (const std::exception &problem) {
      lose(problem);
    }
    forget_splice();
    if (!has_changed) return;
    or_lose([&] {
      instance_.host.cut_log(position().log_total);
      if (history_.needs_guest(instance_)) {
        run_as_guest([&] { restore(true); });
      } else {
        restore(true);
      }
    });
    keep_log();
  }

  void restore(bool is_needed) {
    if (!is_needed) return;
    history_.restore(instance_, std::exchange(is_stale_, false));
  }

  // The part of taking back that can't be taken back itself.
  template <class Body>
  void or_lose(Body body) {
    try {
      body();
    } catch (const std::exception &problem) {
      lose(problem);
    }
  }

  [[noreturn]] void lose(const std::exception &problem) {
    broken_ = "out of memory";  // so short that it takes none
    broken_ = std::string("tokens could not be taken back: ") + problem.what();
    throw WasmError(broken_);
  }

  void forget_splice() {
    spliced_.clear();
    is_spliced_ = false;
  }

  void keep_log() noexcept {
    const std::uint64_t log_total = instance_.host.log_total();
    const std::int64_t num_tokens = position().num_tokens;
    std::lock_guard<std::mutex> lock(log_mutex_);
    try {
      if (kept_total_ != log_total) {
        kept_log_ = instance_.host.log;
        kept_total_ = log_total;
      }
      const auto is_taken_back = [&](const Mark &mark) {
        return mark.num_tokens > num_tokens || mark.log_total > log_total;
      };
      while (!marks_.empty() && is_taken_back(marks_.back())) marks_.pop_back();
      if (marks_.size() == kMaxMarks) marks_.pop_front();
      marks_.push_back({num_tokens, log_total});
    } catch (const std::bad_alloc &) {
      // It is kept with the next step's.
    }
  }

  const std::shared_ptr<const WasmProgram> program_;
  WasmInstance instance_;
  WasmHistory history_;

  std::vector<std::int32_t> spliced_;  // what came in place of the last token,
  bool is_spliced_ = false;            // ... if it was replaced
  bool is_stale_ = false;              // a step failed, and what it did to the instance is still there
  std::string broken_;                 // why the instance is of no use any more

  // Where the log ended, by number of tokens. It covers as many tokens as iterations in flight may be ahead of the
  // answer.
  struct Mark {
    std::int64_t num_tokens = 0;
    std::uint64_t log_total = 0;
  };
  static constexpr std::size_t kMaxMarks = 64;

  mutable std::mutex log_mutex_;
  std::string kept_log_;  // under the mutex, as is what follows
  std::uint64_t kept_total_ = 0;
  std::deque<Mark> marks_;  // of the steps that the log holds, oldest first
};

int wasm_accept(WasmMatcher &matcher, std::int32_t token) { return matcher.accept(token); }
int wasm_validate(WasmMatcher &matcher, const std::int32_t *tokens, int count) {
  return matcher.validate(tokens, count);
}
int wasm_fill(WasmMatcher &matcher, std::int32_t *row, int words) { return matcher.fill(row, words); }
int wasm_rollback(WasmMatcher &matcher, int count) { return matcher.rollback(count); }
void *wasm_fork(WasmMatcher &matcher) { return matcher.fork().release(); }
int wasm_reset(WasmMatcher &matcher) { return matcher.reset(); }
int wasm_forced(WasmMatcher &matcher, std::int32_t *tokens, int capacity) {
  return matcher.position().copy_forced(tokens, capacity);
}
int wasm_is_terminated(WasmMatcher &matcher) { return matcher.position().is_terminated; }
const char *wasm_error(WasmMatcher &matcher) { return matcher.error.c_str(); }
void wasm_destroy(WasmMatcher &matcher) { delete &matcher; }
float wasm_temperature(WasmMatcher &matcher) { return matcher.position().temperature(); }
int wasm_splice(WasmMatcher &matcher, int *backtrack, std::int32_t *tokens, int capacity) {
  return matcher.splice(backtrack, tokens, capacity);
}

constexpr weft_matcher_ops kOps = {WEFT_MATCHER_ABI,    guarded<wasm_accept>,   guarded<wasm_validate>,
                                   guarded<wasm_fill>,  guarded<wasm_rollback>, guarded<wasm_fork>,
                                   guarded<wasm_reset>, guarded<wasm_forced>,   guarded<wasm_is_terminated>,
                                   guarded<wasm_error>, guarded<wasm_destroy>,  guarded<wasm_temperature>,
                                   guarded<wasm_splice>};

}  // namespace

weft_matcher wasm_matcher(std::shared_ptr<const WasmProgram> program, std::string argument,
                          const std::vector<std::int32_t> &prompt, std::shared_ptr<WasmVariables> variables) {
  auto matcher = std::make_unique<WasmMatcher>(std::move(program), std::move(argument), std::move(variables));
  matcher->start(prompt);
  return {&kOps, matcher.release()};
}

std::size_t wasm_undo_bytes(const weft_matcher &matcher) {
  return matcher.ops == &kOps ? static_cast<const WasmMatcher *>(matcher.self)->undo_bytes() : 0;
}

bool wasm_log(const weft_matcher &matcher, std::string &log) {
  if (matcher.ops != &kOps) return false;
  log = static_cast<const WasmMatcher *>(matcher.self)->log();
  return true;
}

std::optional<WasmReport> wasm_report(const weft_matcher &matcher, std::int64_t num_tokens) {
  weft_matcher inner = matcher;
  while (const std::optional<weft_matcher> behind = guide_after(inner, num_tokens)) inner = *behind;
  if (inner.ops != &kOps) return std::nullopt;
  return static_cast<const WasmMatcher *>(inner.self)->report(num_tokens);
}

}  // namespace weft
